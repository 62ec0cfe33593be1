// Runs the suite's model on a golden case and compares everything with PyTorch's values.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "common/train/trainer.h"
#include "common/verify/check.h"

namespace ref5d::testing {

struct GoldenCase {
  GptConfig model;
  OptimizerOptions optimizer;
  std::int64_t micro_batch = 0, batch = 0, steps = 0;
  std::vector<Row> rows;
  NamedTensors tensors;  // everything in the file
};

[[nodiscard]] GoldenCase read_golden(const std::string& name);

// What a run made of the case, under the golden file's names: hidden/I, logits, loss, grad_norm, step_loss, grad/NAME,
// final/NAME.
// apply turns the settings of one device into those of this rank of a layout; all its ranks call it.
using ApplyLayout = std::function<void(TrainerOptions&)>;
[[nodiscard]] NamedValues run_case(const GoldenCase& golden, Dtype dtype, std::int64_t micro_batch,
                                   const ApplyLayout& apply = {});

// Checks of a run in `dtype` with the case's micro-batches against the golden values: within 1e-11 in fp64; in fp32 and bf16
// within 3 times the error that the whole batch at once has in the same dtype.
// Of a layout, the ranks where global tensors are `here` compare.
[[nodiscard]] Verdict check_golden(const GoldenCase& golden, Dtype dtype, const ApplyLayout& apply = {}, bool here = true);

}  // namespace ref5d::testing
