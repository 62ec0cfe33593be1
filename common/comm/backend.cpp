#include "common/comm/backend.h"

#include "common/comm/transport.h"
#include "common/device/device.h"
#include "common/device/error.h"

#ifndef REF5D_CUDA

namespace ref5d {

std::string choose_backend(const std::string& name) {
  if (name == "nccl")
    throw InputError("--comm nccl needs MODE=cuda; this build is MODE=" + Device::mode() + ": use --comm mpi");
  set_transport_maker(make_mpi_transport);
  return "";
}

}  // namespace ref5d

#endif
