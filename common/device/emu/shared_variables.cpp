#include "common/device/emu/shared_variables.h"

#include <link.h>

#include "common/device/emu/shadow.h"

namespace ref5d::emu {
namespace {

// Behind the block's shared arrays, which take the first half.
constexpr std::uintptr_t kVariables = kMemory + kSharedBytes / 2,
                         kMaxBytes = kSharedBytes / 4;  // of all the program's kernels together

struct Range {
  std::uintptr_t begin = 0, bytes = 0;
};

// The thread-local variables of this thread that belong to the program itself, which is the first on the loader's list.
Range own_variables() {
  Range range;
  const auto visit = [](dl_phdr_info* object, std::size_t, void* found) {
    for (int i = 0; i < object->dlpi_phnum; ++i) {
      const auto& header = object->dlpi_phdr[i];
      if (header.p_type == PT_TLS)
        *static_cast<Range*>(found) = {reinterpret_cast<std::uintptr_t>(object->dlpi_tls_data), header.p_memsz};
    }
    return 1;
  };
  dl_iterate_phdr(visit, &range);
  if (range.begin == 0 || range.bytes == 0 || range.bytes > kMaxBytes) return {};
  reserve_memory();
  mark_live(kVariables + range.begin % 64, range.bytes);
  return range;
}

}  // namespace

std::uintptr_t shared_variable(std::uintptr_t address) {
  static thread_local const Range kRange = own_variables();
  // Aligned as in the program.
  return address - kRange.begin < kRange.bytes ? kVariables + kRange.begin % 64 + (address - kRange.begin) : 0;
}

}  // namespace ref5d::emu
