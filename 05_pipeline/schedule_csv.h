// Schedules as CSV: a row for each rank, a cell for each of its operations, empty cells for idle time. The format of PyTorch's
// pipelining schedules, which reads and writes the same.
#pragma once

#include <string>

#include "05_pipeline/schedule.h"

namespace ref5d::pipeline {

[[nodiscard]] std::string to_csv(const Schedule& schedule);
// Of a text, or the file of this name. InputError that names row and cell for what is no schedule. Stages and micro-batches are
// as many as occur, and the name is the source; whether it is whole is for Assignment to say.
[[nodiscard]] Schedule parse_csv(const std::string& text, const std::string& source);
[[nodiscard]] Schedule read_csv(const std::string& path);

}  // namespace ref5d::pipeline
