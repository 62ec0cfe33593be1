// Work of the host in a stream's order.
#include <cuda_runtime.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <deque>
#include <exception>
#include <memory>
#include <utility>

#include "common/device/cuda/cuda_stream.h"
#include "common/device/device.h"
#include "common/device/polled.h"

namespace ref5d {

namespace cuda {
namespace {

// CUDA's own thread runs the task. It must not see an exception, nor free what the task owns, which may call CUDA.
struct HostTask {
  const Stream* stream;
  std::function<void()> run;
  std::exception_ptr error;  // valid once done
  std::atomic<bool> done = false;
};

// The first error of a task whose stream has gone: the next wait throws it.
std::exception_ptr& lost_error() {
  static std::exception_ptr error;
  return error;
}

// Not yet let go, as enqueued. Of the host's thread alone.
std::deque<std::unique_ptr<HostTask>>& host_tasks() {
  static auto* const kTasks = new std::deque<std::unique_ptr<HostTask>>;
  return *kTasks;
}

void CUDART_CB run_host_task(void* p) noexcept {
  auto* task = static_cast<HostTask*>(p);
  try {
    task->run();
  } catch (...) {
    task->error = std::current_exception();
  }
  task->done.store(true, std::memory_order_release);
}

}  // namespace

void finish_host_tasks() {
  if (lost_error()) std::rethrow_exception(std::exchange(lost_error(), nullptr));
  const auto is_done = [](const std::unique_ptr<HostTask>& t) { return t->done.load(std::memory_order_acquire); };
  auto& tasks = host_tasks();
  for (auto at = tasks.begin(); (at = std::find_if(at, tasks.end(), is_done)) != tasks.end();) {
    const std::exception_ptr error = (*at)->error;
    at = tasks.erase(at);
    if (error) std::rethrow_exception(error);
  }
}

void forget_host_tasks(const Stream& stream) {
  std::erase_if(host_tasks(), [&](const std::unique_ptr<HostTask>& t) {
    if (t->stream != &stream || !t->done) return false;
    if (t->error && !lost_error()) lost_error() = t->error;
    return true;
  });
}

}  // namespace cuda

void host_task(Stream& stream, const std::string& name, std::function<void()> task) {
  const cuda::ProfileScope profile(stream, name);
  auto& tasks = cuda::host_tasks();
  tasks.push_back(std::make_unique<cuda::HostTask>());
  tasks.back()->stream = &stream;
  tasks.back()->run = std::move(task);
  const cudaError_t status = cudaLaunchHostFunc(cuda::native(stream), cuda::run_host_task, tasks.back().get());
  if (status != cudaSuccess) tasks.pop_back();
  cuda::check(status, "cudaLaunchHostFunc");
}

// Works start in the order in which they are enqueued, whatever their keys.
void enqueue_polled(Stream& stream, PolledWork work) {
  stream.synchronize();
  const auto begin = std::chrono::steady_clock::now();
  detail::Patience patience;
  patience.begin();
  work.start();
  for (int idle = 1; !work.poll(); ++idle) {
    patience.check(work);
    detail::back_off(idle);
  }
  Profiler& profiler = device().profiler();
  if (profiler.on()) profiler.add(stream.name(), work.name, begin, std::chrono::steady_clock::now());
}

}  // namespace ref5d
