#include "common/device/profiler.h"

namespace ref5d {

void Profiler::start() {
  spans_.clear();
  backend::profile_start();
  origin_ = std::chrono::steady_clock::now();
  on_ = true;
}

void Profiler::stop() {
  on_ = false;
  backend::profile_stop();
}

void Profiler::add(const std::string& stream, const std::string& name, std::chrono::steady_clock::time_point begin,
                   std::chrono::steady_clock::time_point end) {
  using Micros = std::chrono::duration<double, std::micro>;
  add_us(stream, name, Micros(begin - origin_).count(), Micros(end - begin).count());
}

void Profiler::add_us(const std::string& stream, const std::string& name, double start_us, double duration_us) {
  spans_.push_back({stream, name, start_us, duration_us});
}

std::map<std::string, Profiler::Total> Profiler::by_name() const {
  std::map<std::string, Total> totals;
  for (const Span& s : spans_) {
    Total& t = totals[s.name];
    ++t.calls;
    t.us += s.duration_us;
  }
  return totals;
}

}  // namespace ref5d
