#include "common/comm/staging.h"

#include <algorithm>
#include <deque>
#include <utility>
#include <vector>

#include "common/device/memory.h"

namespace ref5d {

#if !defined(REF5D_CUDA) && !defined(REF5D_EMU)

struct Staging::Impl {};
Staging::Staging(Stream&) {}
Staging::~Staging() = default;
std::byte* Staging::to_send(const std::byte* data, std::size_t) const { return const_cast<std::byte*>(data); }
std::byte* Staging::to_receive(std::byte* data, std::size_t) const { return data; }
void Staging::finish() const {}

#else

namespace {

struct Pinned {
  std::unique_ptr<PinnedBuffer> buffer;
  Event passed;  // the last stream that used it has gone on
};

// Page-locked memory takes long to make, so it is kept.
std::deque<Pinned>& idle_buffers() {
  static auto* const kIdle = new std::deque<Pinned>;
  return *kIdle;
}

// The smallest that is large enough and whose last use is over.
Pinned take_buffer(std::size_t bytes) {
  auto& idle = idle_buffers();
  auto best = idle.end();
  for (auto it = idle.begin(); it != idle.end(); ++it) {
    const bool fits = it->buffer->bytes() >= bytes && it->passed.done();
    if (fits && (best == idle.end() || it->buffer->bytes() < best->buffer->bytes())) best = it;
  }
  if (best == idle.end()) return {std::make_unique<PinnedBuffer>(bytes), Event()};
  Pinned taken = std::move(*best);
  idle.erase(best);
  return taken;
}

}  // namespace

struct Staging::Impl {
  struct Arrival {
    std::byte* to;
    const std::byte* from;
    std::size_t bytes;
  };
  Stream* stream;
  std::vector<Pinned> buffers;
  std::vector<Arrival> arrivals;

  std::byte* buffer(std::size_t bytes) {
    buffers.push_back(take_buffer(bytes));
    return buffers.back().buffer->data();
  }
};

Staging::Staging(Stream& stream) : impl_(std::make_unique<Impl>()) { impl_->stream = &stream; }

Staging::~Staging() {
  for (Pinned& p : impl_->buffers) {
    p.passed.record(*impl_->stream);
    idle_buffers().push_back(std::move(p));
  }
}

std::byte* Staging::to_send(const std::byte* data, std::size_t bytes) const {
  std::byte* pinned = impl_->buffer(bytes);
  copy_to_pinned(*impl_->stream, pinned, data, bytes);
  return pinned;
}

std::byte* Staging::to_receive(std::byte* data, std::size_t bytes) const {
  std::byte* pinned = impl_->buffer(bytes);
  impl_->arrivals.push_back({data, pinned, bytes});
  return pinned;
}

void Staging::finish() const {
  for (const Impl::Arrival& a : impl_->arrivals) copy_pinned_to_device(*impl_->stream, a.to, a.from, a.bytes);
}

#endif

}  // namespace ref5d
