// What has been launched under the emulator, for tests that ask whether kernels were tried at sizes that show anything.
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace ref5d::emu {

struct LargestLaunch {
  std::uint64_t blocks = 0;  // the most of any launch
  unsigned threads = 0;      // likewise, in a block
};
// By kernel, with its template arguments.
[[nodiscard]] std::map<std::string, LargestLaunch>& largest_launches();

}  // namespace ref5d::emu
