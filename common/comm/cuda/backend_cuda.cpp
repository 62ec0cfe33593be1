#include <cuda_runtime.h>

#include <cstring>
#include <map>

#include "common/comm/backend.h"
#include "common/comm/cuda/nccl_transport.h"
#include "common/comm/world.h"
#include "common/device/cuda/cuda_stream.h"
#include "common/device/error.h"

namespace ref5d {

namespace {

// Two ranks that use one GPU, as a line of text; empty if there are none.
std::string shared_gpu() {
  int device_number = 0;
  cuda::check(cudaGetDevice(&device_number), "cudaGetDevice");
  cudaDeviceProp properties;
  cuda::check(cudaGetDeviceProperties(&properties, device_number), "cudaGetDeviceProperties");
  Bytes uuid(sizeof(properties.uuid));
  std::memcpy(uuid.data(), &properties.uuid, uuid.size());
  std::map<Bytes, int> owners;
  const std::vector<Bytes> all = all_gather_on_host(world().everyone(), uuid);
  for (std::size_t r = 0; r < all.size(); ++r) {
    const auto [owner, is_new] = owners.emplace(all[r], static_cast<int>(r));
    if (!is_new) return "ranks " + std::to_string(owner->second) + " and " + std::to_string(r) + " share a GPU";
  }
  return "";
}

}  // namespace

std::string choose_backend(const std::string& name) {
  set_transport_maker(make_mpi_transport);
  if (name == "mpi") return "";
  const std::string shared = shared_gpu();
  if (name == "nccl" && !shared.empty())
    throw InputError("--comm nccl: " + shared + "; start one rank per GPU, or use --comm mpi");
  if (!shared.empty()) return "communication over MPI, through host memory: " + shared;
  set_transport_maker(make_nccl_transport);
  return "communication over NCCL: every rank has its own GPU";
}

}  // namespace ref5d
