#include "common/comm/cuda/nccl_watch.h"

#include <cuda_runtime.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <list>
#include <mutex>
#include <thread>

#include "common/comm/world.h"
#include "common/device/cuda/cuda_stream.h"
#include "common/device/error.h"

namespace ref5d::cuda {

namespace {

using Clock = std::chrono::steady_clock;

struct Watched {
  ncclComm_t comm;
  std::string name;
  cudaEvent_t complete;
  Clock::time_point since;
};

class Watch {
 public:
  Watch() : timeout_(world().timeout()), rank_(world().rank()) {
    check(cudaGetDevice(&device_), "cudaGetDevice");
    std::thread([this] { run(); }).detach();  // for the process's life
  }

  void add(Watched w) {
    const std::lock_guard<std::mutex> lock(mutex_);
    watched_.push_back(std::move(w));
  }
  void forget(ncclComm_t comm) {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::erase_if(watched_, [&](const Watched& w) { return w.comm == comm && let_go(w); });
  }

 private:
  static bool let_go(const Watched& w) {
    cudaEventDestroy(w.complete);
    return true;
  }

  void run() {
    cudaSetDevice(device_);
    for (;;) {
      usleep(100'000);
      const std::lock_guard<std::mutex> lock(mutex_);
      std::erase_if(watched_, [](const Watched& w) { return cudaEventQuery(w.complete) == cudaSuccess && let_go(w); });
      // An operation waits for those before it on its stream, so its own time begins when it is the oldest.
      if (watched_.empty()) {
        oldest_ = {};
        continue;
      }
      if (watched_.front().complete != oldest_) {
        oldest_ = watched_.front().complete;
        watched_.front().since = Clock::now();
      }
      check_on(watched_.front());
    }
  }

  void check_on(const Watched& w) const {
    ncclResult_t error = ncclSuccess;
    ncclCommGetAsyncError(w.comm, &error);
    const bool late = timeout_.count() > 0 && Clock::now() - w.since > timeout_;
    if ((error == ncclSuccess || error == ncclInProgress) && !late) return;
    std::fflush(stdout);
    std::fprintf(
        stderr, "rank %d: %s %s\n", rank_, w.name.c_str(),
        late ? "was not complete in time: another rank has ended, or waits in another operation" : ncclGetErrorString(error));
    std::fflush(stderr);
    _exit(kExitBroken);
  }

  std::chrono::nanoseconds timeout_;
  int rank_, device_ = 0;
  std::mutex mutex_;
  std::list<Watched> watched_;
  cudaEvent_t oldest_ = {};
};

Watch& the_watch() {
  static auto* const kWatch = new Watch;
  return *kWatch;
}

}  // namespace

void watch(ncclComm_t comm, const std::string& name, Stream& stream) {
  cudaEvent_t complete = {};
  check(cudaEventCreateWithFlags(&complete, cudaEventDisableTiming), "cudaEventCreate");
  check(cudaEventRecord(complete, native(stream)), "cudaEventRecord");
  the_watch().add({comm, name, complete, Clock::now()});
}

void forget(ncclComm_t comm) { the_watch().forget(comm); }

}  // namespace ref5d::cuda
