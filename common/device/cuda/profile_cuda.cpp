// The profiler on the GPU: a pair of events around each piece of work, read when the profile ends.
#include <cuda_runtime.h>

#include <deque>

#include "common/device/cuda/cuda_stream.h"
#include "common/device/device.h"

namespace ref5d {

namespace cuda {
namespace {

class TimingEvent {
 public:
  TimingEvent() { check(cudaEventCreate(&event_), "cudaEventCreate"); }
  ~TimingEvent() { cudaEventDestroy(event_); }
  TimingEvent(const TimingEvent&) = delete;
  TimingEvent& operator=(const TimingEvent&) = delete;

  [[nodiscard]] cudaEvent_t get() const { return event_; }
  [[nodiscard]] double us_since(const TimingEvent& earlier) const {
    float ms = 0;
    check(cudaEventElapsedTime(&ms, earlier.event_, event_), "cudaEventElapsedTime");
    return ms * 1e3;
  }

 private:
  cudaEvent_t event_ = nullptr;
};

}  // namespace

struct PendingSpan {
  PendingSpan(std::string stream_, std::string name_) : stream(std::move(stream_)), name(std::move(name_)) {}
  std::string stream, name;
  TimingEvent begin, end;
};

namespace {

// Of the profile that is being taken.
struct Profile {
  TimingEvent origin;
  std::deque<PendingSpan> spans;  // whose elements stay where they are
};
std::unique_ptr<Profile>& profile() {
  static auto* const kProfile = new std::unique_ptr<Profile>;
  return *kProfile;
}

}  // namespace

ProfileScope::ProfileScope(Stream& stream, const std::string& name) {
  if (!device().profiler().on()) return;
  stream_ = &stream;
  span_ = &profile()->spans.emplace_back(stream.name(), name);
  check(cudaEventRecord(span_->begin.get(), native(stream)), "cudaEventRecord");
}

ProfileScope::~ProfileScope() {
  if (span_ != nullptr) cudaEventRecord(span_->end.get(), native(*stream_));
}

}  // namespace cuda

namespace backend {

void profile_start() {
  cuda::profile() = std::make_unique<cuda::Profile>();
  // On the default stream, where nothing else runs, so that it happens now.
  cuda::check(cudaEventRecord(cuda::profile()->origin.get(), nullptr), "cudaEventRecord");
  cuda::check(cudaEventSynchronize(cuda::profile()->origin.get()), "cudaEventSynchronize");
}

void profile_stop() {
  if (!cuda::profile()) return;
  for (const cuda::PendingSpan& span : cuda::profile()->spans) {
    cuda::check(cudaEventSynchronize(span.end.get()), "cudaEventSynchronize");
    device().profiler().add_us(span.stream, span.name, span.begin.us_since(cuda::profile()->origin),
                               span.end.us_since(span.begin));
  }
  cuda::profile().reset();
}

}  // namespace backend

}  // namespace ref5d
