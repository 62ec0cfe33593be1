// Host memory between the device and MPI.
#pragma once

#include <cstddef>
#include <memory>

#include "common/device/stream.h"

namespace ref5d {

// For one exchange on a stream. In MODE=cpu device memory is host memory and MPI takes it as it is. Elsewhere page-locked
// memory stands between: MPI may not read what a stream has not finished, nor the host what is the device's (pitfall P59).
class Staging {
 public:
  explicit Staging(Stream& stream);
  ~Staging();
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  // Where MPI finds device memory `data` once the stream has come here.
  [[nodiscard]] std::byte* to_send(const std::byte* data, std::size_t bytes) const;
  // Where MPI puts what is meant for device memory `data`.
  [[nodiscard]] std::byte* to_receive(std::byte* data, std::size_t bytes) const;
  // After the exchange is enqueued: brings on the device what was received.
  void finish() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ref5d
