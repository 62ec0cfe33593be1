// Help for testing sequence and context parallelism: meshes of tp x cp x dp, and runs on them beside a single device's.
#pragma once

#include <optional>
#include <random>
#include <string>
#include <vector>

#include "04_seq_context_parallel/context_parallel.h"
#include "04_seq_context_parallel/run.h"
#include "tests/support/tensor_parallel_testing.h"

namespace ref5d::testing {

using context_parallel::ContextParallelOptions;
using seq_context_parallel::Lesson;

// How many ranks there are along each axis.
struct AxisSizes {
  int tp = 1, cp = 1, dp = 1;
  [[nodiscard]] int ranks() const { return tp * cp * dp; }
  [[nodiscard]] std::string text() const {
    return "tp " + std::to_string(tp) + ", cp " + std::to_string(cp) + ", dp " + std::to_string(dp);
  }
};

inline std::optional<Mesh> mesh_slice(const AxisSizes& sizes) {
  return world_slice({.edp = sizes.dp, .cp = sizes.cp, .tp = sizes.tp});
}

inline ContextParallelOptions context_of(const std::string& kind, const std::string& layout = "zigzag", int ulysses_size = 0) {
  ContextParallelOptions options;
  options.kind = kind;
  options.layout = layout;
  options.ulysses_size = ulysses_size;
  return options;
}

// Every kind on so many ranks, ulysses with every size of its groups.
inline std::vector<ContextParallelOptions> every_kind(int cp, const std::string& layout = "zigzag") {
  std::vector<ContextParallelOptions> all{context_of("ring", layout), context_of("allgather", layout)};
  for (int size = 1; size <= cp; ++size)
    if (cp % size == 0) all.push_back(context_of("ulysses", layout, size));
  return all;
}

inline std::string text(const ContextParallelOptions& o) {
  return o.kind + (o.ulysses_size > 0 ? " of " + std::to_string(o.ulysses_size) : "") + ", " + o.layout;
}

inline Lesson lesson_of(const StrategyCase& s, const ContextParallelOptions& context = {}) {
  Lesson lesson;
  lesson.strategy = s.options;
  lesson.shard_size = s.shard_size;
  lesson.context = context;
  return lesson;
}
inline Lesson lesson_of(const ContextParallelOptions& context) { return lesson_of(strategy_case("ddp"), context); }
inline Lesson sequence_parallel_lesson(const std::string& keep, const StrategyCase& s = strategy_case("ddp")) {
  Lesson lesson = lesson_of(s);
  lesson.sp = true;
  lesson.sequence.keep = keep;
  return lesson;
}

inline TrainerOptions over_mesh(Mesh& mesh, TrainerOptions o, const Lesson& lesson) {
  seq_context_parallel::apply(o, mesh, lesson, static_cast<int>(std::max<std::int64_t>(lesson.shard_size, 1)));
  return o;
}

// On the ranks of the mesh; tensors end up on its rank 0.
inline RunValues train_over(Mesh& mesh, const TrainerOptions& o, const Lesson& lesson, const Dataset& data, std::int64_t steps,
                            const OnStep& on_step = {}) {
  Trainer trainer(over_mesh(mesh, o, lesson), data);
  return values_of_steps(trainer, steps, o.storage.dtype != Dtype::kFp64, on_step);
}

// Rows of several documents each, of which some have many labels and some few.
inline Dataset packed_data(const GptConfig& c, std::int64_t count) {
  std::vector<Row> rows = some_rows(c, count);
  std::mt19937 generator(5);
  for (Row& row : rows) {
    for (std::size_t t = 0; t < row.start.size(); ++t) {
      const bool begins = t == 0 || generator() % 3 == 0;
      row.start[t] = begins ? row.order[t] : row.start[t - 1];
      if (begins && t > 0) row.labels[t - 1] = kIgnoreLabel;
    }
  }
  return Dataset(rows);
}

inline GptConfig with_length(GptConfig c, std::int64_t length) {
  c.seq = length;
  return c;
}

}  // namespace ref5d::testing
