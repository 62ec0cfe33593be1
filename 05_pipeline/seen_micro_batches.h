// For dumps: which micro-batches' activations a rank has shown to the probe, and in which order. On one device it is all of
// them in theirs.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "common/model/context.h"
#include "common/model/placement.h"

namespace ref5d::pipeline {

using SeenMicroBatches = std::map<std::string, std::vector<std::int64_t>>;  // by the activation's name

// Passes on what a pass of one micro-batch shows, and notes that it did.
class NotingProbe : public Probe {
 public:
  NotingProbe(Probe& inner, SeenMicroBatches& seen, std::int64_t micro_batch)
      : inner_(inner), seen_(seen), micro_batch_(micro_batch) {}
  void see(const std::string& name, const Tensor& tensor, Stream& stream) override {
    inner_.see(name, tensor, stream);
    seen_[name].push_back(micro_batch_);
  }
  [[nodiscard]] bool wants_sublayers() const override { return inner_.wants_sublayers(); }

 private:
  Probe& inner_;
  SeenMicroBatches& seen_;
  std::int64_t micro_batch_;
};

// Of `rows`, those that a rank would have of all micro-batches of a share, those of the micro-batches in `seen`, in that order.
[[nodiscard]] std::vector<Segment> rows_seen(const std::vector<std::int64_t>& seen, std::int64_t micro_batches,
                                             const std::vector<Segment>& rows);

}  // namespace ref5d::pipeline
