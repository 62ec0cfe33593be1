#include "common/comm/backend.h"

#include <fmt/format.h>

#include <map>

#include "common/comm/transport.h"
#include "common/device/device.h"
#include "common/device/error.h"

namespace ref5d {

namespace {

// Two ranks that use one GPU; empty if there are none.
std::string shared_gpu(const std::vector<Bytes>& gpus) {
  std::map<Bytes, std::size_t> owners;
  for (std::size_t r = 0; r < gpus.size(); ++r) {
    const auto [owner, is_new] = owners.emplace(gpus[r], r);
    if (!is_new) return fmt::format("ranks {} and {} share a GPU", owner->second, r);
  }
  return "";
}

}  // namespace

Backend backend_for(const std::string& name, const std::vector<Bytes>& gpus) {
  if (name == "mpi") return {false, ""};
  const std::string shared = shared_gpu(gpus);
  if (name == "nccl" && !shared.empty())
    throw InputError("--comm nccl: " + shared + "; start one rank per GPU, or use --comm mpi");
  if (!shared.empty()) return {false, "communication over MPI, through host memory: " + shared};
  return {true, "communication over NCCL: every rank has its own GPU"};
}

#ifndef REF5D_CUDA

std::string choose_backend(const std::string& name) {
  if (name == "nccl")
    throw InputError("--comm nccl needs MODE=cuda; this build is MODE=" + Device::mode() + ": use --comm mpi");
  set_transport_maker(make_mpi_transport);
  return "";
}

#endif

}  // namespace ref5d
