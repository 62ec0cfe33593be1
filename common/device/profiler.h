// Records when each piece of device work ran: for time by kernel and for traces. Off by default.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace ref5d {

struct Span {
  std::string stream, name;
  double start_us, duration_us;  // since start()
};

class Profiler {
 public:
  // Both at a moment when the device has nothing to do (Device::synchronize).
  void start();  // forgets what it had
  void stop();
  [[nodiscard]] bool on() const { return on_; }
  // When it was started.
  [[nodiscard]] std::chrono::steady_clock::time_point origin() const { return origin_; }
  void add(const std::string& stream, const std::string& name, std::chrono::steady_clock::time_point begin,
           std::chrono::steady_clock::time_point end);
  void add_us(const std::string& stream, const std::string& name, double start_us, double duration_us);
  [[nodiscard]] const std::vector<Span>& spans() const { return spans_; }

  struct Total {
    std::int64_t calls = 0;
    double us = 0;
  };
  [[nodiscard]] std::map<std::string, Total> by_name() const;

 private:
  bool on_ = false;
  std::chrono::steady_clock::time_point origin_{};
  std::vector<Span> spans_;
};

namespace backend {
// One per mode: what the device itself must do when a profile begins, and when it ends.
void profile_start();
void profile_stop();
}  // namespace backend

}  // namespace ref5d
