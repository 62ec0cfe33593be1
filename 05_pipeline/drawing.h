// A schedule as a picture in the terminal: a row for each rank, time to the right.
#pragma once

#include <string>

#include "05_pipeline/schedule.h"
#include "05_pipeline/simulate.h"

namespace ref5d::pipeline {

// In unit times: F, I and W one column, B two, F&B three. colours: with ANSI colours by pass, for a terminal.
[[nodiscard]] std::string draw(const Schedule& schedule, bool colours);

}  // namespace ref5d::pipeline
