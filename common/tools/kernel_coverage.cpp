#include "common/tools/kernel_coverage.h"

#include <filesystem>
#include <regex>
#include <vector>

#include "common/device/device.h"
#include "common/device/error.h"
#include "common/io/file.h"

namespace ref5d {
namespace {

// The first name behind __global__ that is followed by a parenthesis and is no attribute: "void __launch_bounds__(kThreads)
// add_kernel(T* y".
void add_kernels(const std::string& source, std::set<std::string>& names) {
  static const std::regex kKernel(R"(__global__\s+(?:void\s+|__launch_bounds__\([^)]*\)\s*)+(\w+)\s*\()");
  static const std::regex kSuffix("_kernel$");
  for (auto at = std::sregex_iterator(source.begin(), source.end(), kKernel); at != std::sregex_iterator(); ++at)
    names.insert(std::regex_replace((*at)[1].str(), kSuffix, ""));
}

}  // namespace

std::set<std::string> kernels_in_source(const std::string& root) {
  const std::filesystem::path folder = std::filesystem::path(root) / "common/kernels";
  if (!std::filesystem::is_directory(folder))
    throw InputError("there are no sources in " + folder.string() + "; --coverage reads those that this build was made from");
  std::vector<std::filesystem::path> folders{folder, folder / Device::mode(), std::filesystem::path(root) / "common/comm"};
  for (const auto& entry : std::filesystem::directory_iterator(root))  // the lessons: 01_grad_accum
    if (entry.is_directory() && entry.path().filename().string().starts_with("0")) folders.push_back(entry.path());
  std::set<std::string> names;
  for (const auto& each : folders) {
    if (!std::filesystem::is_directory(each)) continue;
    for (const auto& entry : std::filesystem::directory_iterator(each)) {
      if (entry.path().extension() == ".cu") add_kernels(read_file(entry.path().string()), names);
    }
  }
  return names;
}

std::set<std::string> kernels_launched(const std::vector<KernelCase>& cases) {
  std::set<std::string> names;
  device().profiler().start();
  for (const KernelCase& one : cases) (void)run_case(one);
  device().synchronize();
  device().profiler().stop();
  for (const auto& [name, total] : device().profiler().by_name()) names.insert(name.substr(0, name.find('<')));
  return names;
}

}  // namespace ref5d
