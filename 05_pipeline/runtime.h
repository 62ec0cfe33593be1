// Executes a schedule: one loop over a rank's cells, whatever the schedule.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "02_ddp_zero/data_parallel.h"
#include "05_pipeline/cell_records.h"
#include "05_pipeline/links.h"
#include "05_pipeline/plan.h"
#include "05_pipeline/seen_micro_batches.h"
#include "common/comm/mesh.h"
#include "common/train/gather_parts.h"

namespace ref5d::pipeline {

// Mistakes to show (--sabotage).
struct Faults {
  bool weights_after_reduction = false;  // the last W of each stage runs when gradients have been reduced (P41)
  bool tied_unsummed = false;            // each end of a tied weight keeps its own gradient
  bool tied_counts_twice = false;        // both copies of a tied weight count in the gradient norm (P18)
  bool own_norm = false;                 // each stage clips by the norm of its own gradients
  bool mean_per_micro_batch = false;     // each micro-batch's loss is divided by its own labels (P05)
  bool receives_by_need = false;         // messages are received in the order of need, not of sending (P37)
  bool copies_unsummed = false;          // DualPipe: ranks with the same stages do not add their gradients (P46)
};

struct PipelineOptions {
  std::string stage_layers;  // as in layers_of_stages
  LinkOptions links;
  Faults faults;
};

class Pipeline : public data_parallel::Passes {
 public:
  // Over the mesh's pp axis, whose ranks are the schedule's.
  Pipeline(std::shared_ptr<const Plan> plan, Mesh& mesh, const PipelineOptions& options);

  [[nodiscard]] const Plan& plan() const { return *plan_; }
  // Of a tied model: makes the communicator of the two ranks that have the ends of the weight, where it is on two.
  void join_ends();
  // A stage that is on two ranks has half of the micro-batches on each.
  [[nodiscard]] std::int64_t contributions(std::int64_t micro_batches) const override;
  [[nodiscard]] bool has_stages() const override { return plan_->schedule.rank_count() > 1; }
  // Runs the schedule as often as the share has micro-batches for it, then sums what two stages share.
  void run(Gpt& gpt, Context& ctx, Loader& loader, const GlobalBatch& share, std::int64_t micro_batch,
           data_parallel::Strategy& strategy) override;

  [[nodiscard]] const CellRecords& records() const { return records_; }
  // The rows of an activation called so that this rank has shown to a probe in the last step, in that order, of `rows`, those
  // that it would have of all micro-batches.
  [[nodiscard]] std::vector<Segment> rows_seen(const std::string& name, const std::vector<Segment>& rows) const;
  // A fault's end: adds what came after the reduction.
  void add_late(Stream& stream);

 private:
  class Step;
  void sum_tied(Gpt& gpt, Context& ctx);

  std::shared_ptr<const Plan> plan_;
  Mesh& mesh_;
  PipelineOptions options_;
  int rank_;
  Links links_;
  Communicator* ends_ = nullptr;
  CellRecords records_;
  SeenMicroBatches seen_;
  std::int64_t micro_batches_ = 0;                   // of the share
  std::vector<std::pair<Parameter*, Tensor>> late_;  // a fault's: what came after the reduction
};

}  // namespace ref5d::pipeline
