// Streams, events, copies and memory over the CUDA runtime.
#include <cuda_runtime.h>

#include <cstdint>
#include <exception>
#include <set>

#include "common/device/cuda/cuda_stream.h"
#include "common/device/device.h"
#include "common/device/error.h"
#include "common/device/memory.h"

namespace ref5d {

namespace cuda {

void check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  std::string message = std::string("CUDA error in ") + what + ": " + cudaGetErrorString(status);
  if (status == cudaErrorMemoryAllocation) message += "; use a smaller model or micro-batch, or --recompute full";
  if (status == cudaErrorNoDevice || status == cudaErrorInsufficientDriver)
    message += "; this host has no GPU that the program can use: build with MODE=cpu";
  if (status == cudaErrorNoKernelImageForDevice) message += "; build with CUDA_ARCHS naming this GPU's architecture";
  throw RunError(message);
}

namespace {
// Streams that exist: memory of a stream that is gone is freed at once.
std::set<const Stream*>& live_streams() {
  static auto* const kLive = new std::set<const Stream*>;
  return *kLive;
}

// The stream-ordered pool keeps what is freed. By default it gives everything back to the driver at each synchronization.
void keep_freed_memory() {
  int id = 0;
  cudaMemPool_t pool = nullptr;
  check(cudaGetDevice(&id), "cudaGetDevice");
  check(cudaDeviceGetDefaultMemPool(&pool, id), "cudaDeviceGetDefaultMemPool (this GPU or its driver has no memory pools)");
  std::uint64_t threshold = UINT64_MAX;
  check(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &threshold), "cudaMemPoolSetAttribute");
}
}  // namespace
}  // namespace cuda

using cuda::check;

struct Stream::Impl {
  Impl() { check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate"); }
  ~Impl() { cudaStreamDestroy(stream); }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  cudaStream_t stream = nullptr;
};
struct Event::Impl {
  Impl() { check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreate"); }
  ~Impl() { cudaEventDestroy(event); }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  cudaEvent_t event = nullptr;
};

namespace cuda {

cudaStream_t native(Stream& stream) { return stream.impl().stream; }

void allow_shared_bytes(const void* kernel, std::size_t bytes) {
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)),
        "cudaFuncSetAttribute (more shared memory than this GPU has per block)");
}

}  // namespace cuda

Stream::Stream(std::string name) : name_(std::move(name)), impl_(std::make_unique<Impl>()) {
  cuda::keep_freed_memory();
  cuda::live_streams().insert(this);
}

Stream::~Stream() {
  // While an error ends the program nobody needs the work, and communication with a rank that is gone would wait for ever.
  if (std::uncaught_exceptions() == 0) cudaStreamSynchronize(impl_->stream);
  cuda::forget_host_tasks(*this);
  cuda::live_streams().erase(this);
}

void Stream::synchronize() {
  check(cudaStreamSynchronize(impl_->stream), "cudaStreamSynchronize");
  cuda::finish_host_tasks();
}

Event::Event() : impl_(std::make_unique<Impl>()) {}
Event::~Event() = default;
Event::Event(Event&&) noexcept = default;
Event& Event::operator=(Event&&) noexcept = default;

void Event::record(Stream& stream) { check(cudaEventRecord(impl_->event, cuda::native(stream)), "cudaEventRecord"); }
bool Event::done() const {
  const cudaError_t status = cudaEventQuery(impl_->event);
  if (status == cudaErrorNotReady) {
    (void)cudaGetLastError();  // an answer, not an error: the next launch must not find it
    return false;
  }
  check(status, "cudaEventQuery");
  return true;
}
void Event::synchronize() const {
  check(cudaEventSynchronize(impl_->event), "cudaEventSynchronize");
  cuda::finish_host_tasks();
}

void wait(Stream& stream, const Event& event) {
  check(cudaStreamWaitEvent(cuda::native(stream), event.impl().event, 0), "cudaStreamWaitEvent");
}

namespace {
void copy(Stream& stream, const char* name, void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
  if (bytes == 0) return;
  const cuda::ProfileScope profile(stream, name);
  check(cudaMemcpyAsync(to, from, bytes, kind, cuda::native(stream)), "cudaMemcpyAsync");
}
}  // namespace

void copy_to_device(Stream& stream, void* to, const void* from, std::size_t bytes) {
  if (bytes == 0) return;
  copy_pinned_to_device(stream, to, from, bytes);
  stream.synchronize();  // large pageable copies may return before the source has been read
}
void copy_pinned_to_device(Stream& stream, void* to, const void* from, std::size_t bytes) {
  copy(stream, "copy to device", to, from, bytes, cudaMemcpyHostToDevice);
}
void copy_to_pinned(Stream& stream, void* to, const void* from, std::size_t bytes) {
  copy(stream, "copy to host", to, from, bytes, cudaMemcpyDeviceToHost);
}
void copy_to_host(Stream& stream, void* to, const void* from, std::size_t bytes) {
  copy(stream, "copy to host", to, from, bytes, cudaMemcpyDeviceToHost);
  stream.synchronize();
}
void copy_on_device(Stream& stream, void* to, const void* from, std::size_t bytes) {
  copy(stream, "copy", to, from, bytes, cudaMemcpyDeviceToDevice);
}
void fill_zero(Stream& stream, void* to, std::size_t bytes) {
  if (bytes == 0) return;
  const cuda::ProfileScope profile(stream, "fill zero");
  check(cudaMemsetAsync(to, 0, bytes, cuda::native(stream)), "cudaMemsetAsync");
}

namespace backend {
std::byte* allocate(std::size_t bytes, Stream& stream) {
  void* data = nullptr;
  check(cudaMallocAsync(&data, bytes, cuda::native(stream)), "cudaMallocAsync");
  return static_cast<std::byte*>(data);
}
void release(std::byte* data, std::size_t, Stream& stream) noexcept {
  if (cuda::live_streams().contains(&stream)) {
    cudaFreeAsync(data, cuda::native(stream));
  } else {
    cudaFree(data);
  }
}
}  // namespace backend

PinnedBuffer::PinnedBuffer(std::size_t bytes) : bytes_(bytes) {
  void* data = nullptr;
  check(cudaMallocHost(&data, bytes + 1), "cudaMallocHost");
  data_ = static_cast<std::byte*>(data);
}
PinnedBuffer::~PinnedBuffer() { cudaFreeHost(data_); }

void Device::select(int local_rank) {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0)
    throw RunError("this program was built for GPUs (MODE=cuda), but the host has none that it can use; build with MODE=cpu");
  check(cudaSetDevice(local_rank % count), "cudaSetDevice");
}

void Device::set_threads(int n) { threads_ = n; }

void Device::synchronize() {
  check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  cuda::finish_host_tasks();
}

std::string Device::mode() { return "cuda"; }

std::string Device::description() {
  cudaDeviceProp properties{};
  int id = 0;
  if (cudaGetDevice(&id) != cudaSuccess || cudaGetDeviceProperties(&properties, id) != cudaSuccess) return "no GPU";
  return properties.name;
}

}  // namespace ref5d
