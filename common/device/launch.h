// launch<kernel>(stream, grid, block, args...): the one way to start a kernel.
//
// The kernel is a template argument, not a value: the CPU can then inline it into the loop over blocks, and every launch
// knows the kernel's name for traces, time tables and error messages. Only .cu files include this header.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "common/device/error.h"
#include "common/device/kernel.h"
#include "common/device/stream.h"

namespace ref5d {

struct Grid {
  unsigned x = 1, y = 1, z = 1;
  Grid(unsigned x_, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}  // NOLINT(google-explicit-constructor)
};
// What a GPU can launch. The CPU refuses the same, so that a kernel which works there works on a GPU.
inline constexpr unsigned kMaxGridX = 0x7fffffff, kMaxGridYz = 65535;

struct Block {
  unsigned threads;
  std::size_t shared_bytes = 0;  // dynamic shared memory
  Block(unsigned threads_, std::size_t shared_bytes_ = 0) : threads(threads_), shared_bytes(shared_bytes_) {}  // NOLINT
};

namespace detail {
// "rmsnorm_forward<float>" from the compiler's spelling of this function's own type.
template <auto kKernel>
const std::string& kernel_name() {
  static const std::string kName = [](std::string_view s) {
    s.remove_prefix(s.find("kKernel = ") + 10);
    s = s.substr(0, s.find_first_of(";]"));
    std::string name;
    // Kernels live in anonymous namespaces, which compilers spell differently.
    for (std::string_view anonymous : {"{anonymous}::", "<unnamed>::", "(anonymous namespace)::"}) {
      if (const auto at = s.find(anonymous); at != std::string_view::npos) s.remove_prefix(at + anonymous.size());
    }
    for (std::size_t i = 0; i < s.size(); ++i) {  // drop qualifiers such as ref5d::(anonymous namespace)::
      name += s[i];
      if (name.size() >= 2 && name.ends_with("::")) {
        const std::size_t cut = name.find_last_of("<, ", name.size() - 3);
        name.resize(cut == std::string::npos ? 0 : cut + 1);
      }
    }
    if (const auto at = name.find("_kernel"); at != std::string::npos) name.erase(at, 7);
    return name;
  }(__PRETTY_FUNCTION__);  // of this function: a lambda's own says more
  return kName;
}
// Whether there is anything to run.
template <auto kKernel>
bool has_blocks(const Grid& grid) {
  if (grid.x > kMaxGridX || grid.y > kMaxGridYz || grid.z > kMaxGridYz)
    throw RunError(kernel_name<kKernel>() + " needs more blocks than one launch can have; use a smaller micro-batch");
  return grid.x != 0 && grid.y != 0 && grid.z != 0;
}
}  // namespace detail

}  // namespace ref5d

#if defined(__CUDACC__)
#include "common/device/cuda/launch_cuda.h"
#elif defined(REF5D_EMU)
#include "common/device/emu/launch_emu.h"
#else
#include "common/device/cpu/launch_cpu.h"
#endif
