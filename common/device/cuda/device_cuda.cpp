// Streams, events, copies and memory over the CUDA runtime.
#include <cuda_runtime.h>

#include <cstring>
#include <deque>
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
  if (status == cudaErrorNoKernelImageForDevice) message += "; build with CUDA_ARCHS naming this GPU's architecture";
  throw RunError(message);
}

namespace {
// Streams that exist: memory of a stream that is gone is freed at once.
std::set<const Stream*>& live_streams() {
  static auto* const kLive = new std::set<const Stream*>;
  return *kLive;
}

struct PendingSpan {
  std::string stream, name;
  cudaEvent_t begin, end;
};
std::deque<PendingSpan>& pending_spans() {
  static auto* const kPending = new std::deque<PendingSpan>;
  return *kPending;
}
cudaEvent_t& profile_origin() {
  static cudaEvent_t origin = nullptr;
  return origin;
}
}  // namespace
}  // namespace cuda

using cuda::check;

struct Stream::Impl {
  cudaStream_t stream = nullptr;
};
struct Event::Impl {
  cudaEvent_t event = nullptr;
};

namespace cuda {

cudaStream_t native(Stream& stream) { return stream.impl().stream; }

ProfileScope::ProfileScope(Stream& stream, const std::string& name) {
  if (!device().profiler().on()) return;
  stream_ = &stream;
  if (profile_origin() == nullptr) {
    check(cudaEventCreate(&profile_origin()), "cudaEventCreate");
    check(cudaEventRecord(profile_origin(), native(stream)), "cudaEventRecord");
  }
  PendingSpan span{stream.name(), name, nullptr, nullptr};
  check(cudaEventCreate(&span.begin), "cudaEventCreate");
  check(cudaEventCreate(&span.end), "cudaEventCreate");
  check(cudaEventRecord(span.begin, native(stream)), "cudaEventRecord");
  pending_spans().push_back(std::move(span));
}

ProfileScope::~ProfileScope() {
  if (stream_ != nullptr) cudaEventRecord(pending_spans().back().end, native(*stream_));
}

void allow_shared_bytes(const void* kernel, std::size_t bytes) {
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)),
        "cudaFuncSetAttribute (more shared memory than this GPU has per block)");
}

namespace {
void collect_spans() {
  for (PendingSpan& s : pending_spans()) {
    float start = 0, duration = 0;
    check(cudaEventElapsedTime(&start, profile_origin(), s.begin), "cudaEventElapsedTime");
    check(cudaEventElapsedTime(&duration, s.begin, s.end), "cudaEventElapsedTime");
    device().profiler().add_us(s.stream, s.name, start * 1e3, duration * 1e3);
    cudaEventDestroy(s.begin);
    cudaEventDestroy(s.end);
  }
  pending_spans().clear();
}
}  // namespace
}  // namespace cuda

Stream::Stream(std::string name) : name_(std::move(name)), impl_(std::make_unique<Impl>()) {
  check(cudaStreamCreateWithFlags(&impl_->stream, cudaStreamNonBlocking), "cudaStreamCreate");
  cuda::live_streams().insert(this);
}

Stream::~Stream() {
  cudaStreamSynchronize(impl_->stream);
  cuda::live_streams().erase(this);
  cudaStreamDestroy(impl_->stream);
}

void Stream::synchronize() { check(cudaStreamSynchronize(impl_->stream), "cudaStreamSynchronize"); }

Event::Event() : impl_(std::make_unique<Impl>()) {
  check(cudaEventCreateWithFlags(&impl_->event, cudaEventDisableTiming), "cudaEventCreate");
}
Event::~Event() {
  if (impl_) cudaEventDestroy(impl_->event);
}
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
void Event::synchronize() const { check(cudaEventSynchronize(impl_->event), "cudaEventSynchronize"); }

void wait(Stream& stream, const Event& event) {
  check(cudaStreamWaitEvent(cuda::native(stream), event.impl().event, 0), "cudaStreamWaitEvent");
}

void host_task(Stream& stream, const std::string& name, std::function<void()> task) {
  (void)name;
  auto* boxed = new std::function<void()>(std::move(task));
  check(cudaLaunchHostFunc(
            cuda::native(stream),
            [](void* p) {
              auto* f = static_cast<std::function<void()>*>(p);
              (*f)();
              delete f;
            },
            boxed),
        "cudaLaunchHostFunc");
}

void copy_to_device(Stream& stream, void* to, const void* from, std::size_t bytes) {
  if (bytes == 0) return;
  check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, cuda::native(stream)), "cudaMemcpyAsync");
  // Large pageable copies may return before the source has been read.
  check(cudaStreamSynchronize(cuda::native(stream)), "cudaStreamSynchronize");
}
void copy_pinned_to_device(Stream& stream, void* to, const void* from, std::size_t bytes) {
  if (bytes > 0) check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, cuda::native(stream)), "cudaMemcpyAsync");
}
void copy_to_host(Stream& stream, void* to, const void* from, std::size_t bytes) {
  if (bytes > 0) check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, cuda::native(stream)), "cudaMemcpyAsync");
  stream.synchronize();
}
void copy_on_device(Stream& stream, void* to, const void* from, std::size_t bytes) {
  if (bytes > 0) check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, cuda::native(stream)), "cudaMemcpyAsync");
}
void fill_zero(Stream& stream, void* to, std::size_t bytes) {
  if (bytes > 0) check(cudaMemsetAsync(to, 0, bytes, cuda::native(stream)), "cudaMemsetAsync");
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

void Device::set_threads(int n) { threads_ = n; }

void Device::synchronize() {
  check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  cuda::collect_spans();
}

std::string Device::mode() { return "cuda"; }

std::string Device::description() {
  cudaDeviceProp properties{};
  int id = 0;
  if (cudaGetDevice(&id) != cudaSuccess || cudaGetDeviceProperties(&properties, id) != cudaSuccess) return "no GPU";
  return properties.name;
}

}  // namespace ref5d
