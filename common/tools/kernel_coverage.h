// Whether the list of cases launches every kernel that there is.
#pragma once

#include <set>
#include <string>

#include "common/tools/kernel_cases.h"

namespace ref5d {

// The __global__ functions in this build's .cu files under `root`/common/kernels and in the lessons' folders, by the names that
// profiles give them ("add" for add_kernel). InputError if the folder is not there.
[[nodiscard]] std::set<std::string> kernels_in_source(const std::string& root);

// What the cases launch, without template arguments.
[[nodiscard]] std::set<std::string> kernels_launched(const std::vector<KernelCase>& cases);

}  // namespace ref5d
