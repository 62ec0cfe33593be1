#include <cuda_runtime.h>

#include <cstring>

#include "common/comm/backend.h"
#include "common/comm/cuda/nccl_transport.h"
#include "common/comm/world.h"
#include "common/device/cuda/cuda_stream.h"

namespace ref5d {

namespace {

Bytes own_uuid() {
  int device_number = 0;
  cuda::check(cudaGetDevice(&device_number), "cudaGetDevice");
  cudaDeviceProp properties;
  cuda::check(cudaGetDeviceProperties(&properties, device_number), "cudaGetDeviceProperties");
  Bytes uuid(sizeof(properties.uuid));
  std::memcpy(uuid.data(), &properties.uuid, uuid.size());
  return uuid;
}

}  // namespace

std::string choose_backend(const std::string& name) {
  const Backend backend = backend_for(name, all_gather_on_host(world().everyone(), own_uuid()));
  set_transport_maker(backend.nccl ? make_nccl_transport : make_mpi_transport);
  return backend.why;
}

}  // namespace ref5d
