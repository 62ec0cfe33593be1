#include "common/train/run_record.h"

#include <algorithm>

#include "common/device/device.h"

namespace ref5d {

std::vector<double> RunRecord::losses() const {
  std::vector<double> all;
  for (const StepResult& r : steps) all.push_back(r.loss);
  return all;
}

std::vector<double> RunRecord::aux_losses() const {
  std::vector<double> all;
  for (const StepResult& r : steps)
    if (r.aux_loss) all.push_back(*r.aux_loss);
  return all;
}

double RunRecord::median_step_ms() const {
  if (steps.empty()) return 0;
  std::vector<double> ms;
  for (const StepResult& s : steps) ms.push_back(s.ms);
  std::sort(ms.begin(), ms.end());
  return ms[ms.size() / 2];
}

std::int64_t RunRecord::peak(MemoryCategory category) const {
  for (const auto& [c, bytes] : peak_bytes) {
    if (c == category) return bytes;
  }
  return 0;
}

std::vector<std::int64_t> reported_steps(std::int64_t steps) {
  constexpr std::int64_t kMost = 100;
  std::vector<std::int64_t> all;
  for (std::int64_t i = 0; i < std::min(steps, kMost); ++i) all.push_back(steps <= kMost ? i : i * (steps - 1) / (kMost - 1));
  return all;
}

namespace {

// Of the last step. A long run's would fill the memory.
void add_load(RunRecord& record, bool keeps) {
  std::vector<double>& load = record.steps.back().router_load;
  record.router_load.resize(load.size());
  for (std::size_t i = 0; i < load.size(); ++i) record.router_load[i] += load[i];
  if (!keeps) load = {};
}

}  // namespace

RunRecord record_run(Trainer& trainer, std::int64_t steps, std::int64_t compared,
                     const std::function<void(std::int64_t, const StepResult&)>& on_step) {
  RunRecord record;
  const std::vector<std::int64_t> reported = reported_steps(steps);
  const bool first_steps = trainer.steps_taken() == 0;
  if (compared > 0) record.values.initial = trainer.weights();
  device().memory().reset_peaks();
  for (std::int64_t s = 0; s < steps; ++s) {
    device().flops().reset();
    record.steps.push_back(trainer.step());
    if (s == 0) record.flops_per_step = device().flops();
    if (s == 0 && compared > 0) record.values.gradients = trainer.gradients();
    if (s < compared) {
      record.values.losses.push_back(record.steps.back().loss);
      record.values.grad_norms.push_back(record.steps.back().grad_norm);
      if (record.steps.back().aux_loss) record.values.aux_losses.push_back(*record.steps.back().aux_loss);
    }
    if (s + 1 == std::min(steps, compared)) {
      record.values.final_weights = trainer.weights();
      record.values.buffers = trainer.buffers();
    }
    if (on_step) on_step(s, record.steps.back());
    add_load(record, std::binary_search(reported.begin(), reported.end(), s));
  }
  const double norm = record.steps.empty() ? 0 : record.steps.front().grad_norm;
  record.values.epsilon = first_steps ? trainer.options().optimizer.epsilon_before_clip(norm) : 0;
  for (int c = 0; c < kMemoryCategories; ++c) {
    const auto category = static_cast<MemoryCategory>(c);
    record.peak_bytes.emplace_back(category, device().memory().peak(category));
    record.current_bytes.emplace_back(category, device().memory().current(category));
  }
  return record;
}

}  // namespace ref5d
