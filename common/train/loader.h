// Brings micro-batches to the device: the next one is copied while this one computes.
#pragma once

#include <array>
#include <functional>
#include <span>
#include <vector>

#include "common/device/memory.h"
#include "common/model/config.h"
#include "common/model/context.h"
#include "common/train/dataset.h"

namespace ref5d {

// What layouts over several ranks make of a micro-batch; empty on one device.
struct LoaderHooks {
  // Context parallelism: the part of a row that is here, and then what attention must know of the whole rows.
  std::function<Row(const Row& whole)> cut;
  std::function<void(MicroBatch&, std::span<const Row> whole, Stream& compute)> plan_attention;
  // Sequence parallelism: narrows MicroBatch::residual to the rows of the residual stream that are here.
  std::function<void(MicroBatch&)> scatter_residual;
};

class Loader {
 public:
  Loader(const GptConfig& config, Dtype dtype, Stream& compute, LoaderHooks hooks = {});
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  // Starts copying rows (all of one length) on a stream of its own. first_sample: the global sample of the first row.
  void start(std::span<const Row> rows, std::int64_t first_sample);
  // The micro-batch that was started first and not yet taken. Its users on the compute stream run after the copy.
  [[nodiscard]] MicroBatch take(double loss_scale);

  // Micro-batches taken so far, and the rows in them.
  [[nodiscard]] std::int64_t micro_batches_taken() const { return static_cast<std::int64_t>(taken_); }
  [[nodiscard]] std::int64_t rows_taken() const { return rows_taken_; }

 private:
  // tokens, labels, order, start, sample, position; for routers also place, sequence.
  static constexpr int kFields = 6, kFieldsWithExperts = 8;
  struct Slot {
    std::unique_ptr<PinnedBuffer> pinned;
    Event copied;   // the pinned memory may be written again, the device memory be read
    Tensor device;  // int32 [fields, T]
    std::int64_t batch = 0, seq = 0, visible_pairs = 0;
    std::vector<std::int64_t> sequence_lengths;  // of those whose load is balanced
    std::int64_t all_tokens = 0;                 // of the whole rows
    std::vector<Row> whole;                      // where rows are cut
  };
  // The rows that are here.
  [[nodiscard]] std::vector<Row> cut(std::span<const Row> whole) const;
  void put_places(Slot& slot, std::span<const Row> whole, std::span<const Row> here, std::int32_t* place) const;

  GptConfig config_;
  Dtype dtype_;
  Stream& compute_;
  LoaderHooks hooks_;
  std::array<Slot, 2> slots_;
  Stream copy_{"copy"};  // after the slots: it ends first, with the copies that use their memory
  std::size_t started_ = 0, taken_ = 0;
  std::int64_t rows_taken_ = 0;
};

}  // namespace ref5d
