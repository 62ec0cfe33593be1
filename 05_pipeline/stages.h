// Which units of the model a pipeline stage is.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/model/gpt.h"

namespace ref5d::pipeline {

// Layers of each of so many stages, contiguous: the embedding is the first stage's and the head the last's. Where stages do not
// divide the layers, those without embedding and head get one more; stages that are nothing but embedding or head are possible.
// given: "2,1,1" in place of that, or empty. InputError if a stage has nothing to do.
[[nodiscard]] std::vector<std::int64_t> layers_of_stages(std::int64_t layers, int stages, const std::string& given = "");

// Stage s is units [s] of the model.
[[nodiscard]] std::vector<Units> units_of_stages(const std::vector<std::int64_t>& layers);

}  // namespace ref5d::pipeline
