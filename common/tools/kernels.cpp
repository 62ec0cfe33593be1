// kernels: compares every kernel's values with another build's, and times it against the machine's rates.
#include <cstdio>

#include "common/app/program.h"
#include "common/device/device.h"
#include "common/tools/kernel_program.h"

int main(int argc, char** argv) {
  return ref5d::run_program("kernels", argv, [&] {
    ref5d::Device::select(0);
    return ref5d::run_kernels(argc, argv, stdout);
  });
}
