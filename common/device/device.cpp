#include "common/device/device.h"

namespace ref5d {

Stream& Device::compute() {
  if (!compute_) compute_ = std::make_unique<Stream>("compute");
  return *compute_;
}

Device& device() {
  // Never destroyed: buffers in other static objects may outlive it otherwise.
  static Device* const kDevice = new Device;
  return *kDevice;
}

void order(Stream& earlier, Stream& later) {
  Event event;
  event.record(earlier);
  wait(later, event);
}

}  // namespace ref5d
