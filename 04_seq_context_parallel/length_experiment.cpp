// The longest sequence that fits under a cap of a rank's memory, on one rank, and on more of them along cp. Weights, gradients
// and moments take what they take; what is left holds so many tokens' activations, and every rank brings as much of it again.
#include <fmt/format.h>

#include <algorithm>

#include "04_seq_context_parallel/experiments.h"
#include "04_seq_context_parallel/ring_work.h"
#include "common/app/settings.h"
#include "common/device/device.h"
#include "common/device/error.h"
#include "common/verify/table.h"

namespace ref5d::seq_context_parallel {

namespace {

class LongestSequence {
 public:
  LongestSequence(Experiment& e, int ranks) : e_(e), ranks_(ranks), step_(2 * ranks) {}

  // Of the rank that needs most, over one step of training on sequences of `length` tokens: bytes of its whole ledger.
  [[nodiscard]] std::int64_t peak(std::int64_t length) {
    Options options = e_.options;
    options.seq = length;
    options.micro_batch = options.grad_accum = 1;
    options.verify = false;
    options.load.clear();
    Lesson lesson = e_.lesson;
    lesson.sp = false;
    lesson.sabotage = nullptr;
    lesson.strategy.kind = "naive";  // what is sharded would shrink with the ranks, too
    const int first = e_.world.rank() / ranks_ * ranks_;
    std::vector<int> ranks;
    for (int r = first; r < first + ranks_; ++r) ranks.push_back(r);
    Mesh mesh({.cp = ranks_}, ranks);
    const TrainerOptions settings = layout_settings(options, lesson, e_.world, mesh);
    Row row = context_parallel::one_document(length);
    row.labels.assign(row.tokens.size(), 0);
    const Dataset data(std::vector<Row>{row});
    Trainer trainer(settings, data);
    device().memory().reset_peaks();
    (void)trainer.step();
    device().synchronize();
    std::int64_t most = 0;
    for (const Bytes& of_rank :
         all_gather_on_host(e_.world.everyone(), to_bytes(static_cast<double>(device().memory().total_peak()))))
      most = std::max(most, static_cast<std::int64_t>(to_number(of_rank)));
    return most;
  }

  // Whether the kind can use so many ranks.
  [[nodiscard]] bool possible() const {
    const context_parallel::ContextParallelOptions& o = e_.lesson.context;
    if (ranks_ == 1 || o.kind != "ulysses") return true;
    const int size = o.ulysses_size == 0 ? ranks_ : o.ulysses_size;
    return ranks_ % size == 0 && size <= model_config(e_.options).heads;
  }

  // In steps of 2 N tokens; 0 if not one fits. The peak grows evenly, so two runs say where to look, and others whether it is
  // so. InputError where it would be too far to look.
  [[nodiscard]] std::int64_t under(std::int64_t cap, std::int64_t start) {
    const std::int64_t a = rounded(start), b = 2 * a, at_a = peak(a), at_b = peak(b);
    std::int64_t length = std::max(step_, rounded(a + (cap - at_a) * (b - a) / std::max<std::int64_t>(at_b - at_a, 1)));
    if (length > 32 * a && e_.lesson.memory_cap_mib == 0) return 32 * a;  // so little that tokens do not count
    if (length > 32 * a)
      throw InputError(
          fmt::format("--memory-cap {:.2f} holds sequences of some {} tokens, too long to try; use less, or a longer --seq",
                      static_cast<double>(cap) / 0x1p20, length));
    while (length > 0 && peak(length) > cap) length -= step_;
    while (length > 0 && peak(length + step_) <= cap) length += step_;
    return length;
  }

 private:
  [[nodiscard]] std::int64_t rounded(std::int64_t length) const { return std::max(step_, length / step_ * step_); }

  Experiment& e_;
  int ranks_;
  std::int64_t step_;
};

// Whether a ring's own arrays are less than a tenth of what all layers keep: numbers of a token, in backward, in bytes. (Where
// layers are recomputed they keep little. Whole keys, which allgather has for a moment, are not divided by the ranks, and
// ulysses keeps the output twice.)
bool ring_is_small(const Experiment& e) {
  if (e.lesson.context.kind != "ring" || e.options.recompute != "none" || e.options.attention != "flash") return false;
  Layout alone = layout_of(e.options, e.lesson, e.mesh);
  alone.tp = alone.cp = 1;
  alone.sp = false;
  const GptConfig& c = alone.model;
  if (c.position == PositionKind::kLearned) return false;  // of which there are more in a longer sequence
  const auto narrow = static_cast<std::int64_t>(dtype_size(e.options.dtype));
  const auto wide = static_cast<std::int64_t>(dtype_size(accumulator_of(e.options.dtype)));
  // The sum of dq; two blocks of keys and values, and two of their gradients.
  const std::int64_t ring = c.heads * c.head_dim() * wide + 4 * c.kv_heads * c.head_dim() * (narrow + wide);
  return 10 * ring <= c.layers * kept_of_layer(alone, 0, 0).total() / (e.options.micro_batch * c.seq);
}

}  // namespace

void length_experiment(Experiment& e) {
  const int n = e.mesh.everyone().size();
  const std::int64_t start = model_config(e.options).seq;
  // Without a cap, that of what one rank needs for sequences four times as long as the run's.
  const std::int64_t cap = e.lesson.memory_cap_mib > 0 ? static_cast<std::int64_t>(e.lesson.memory_cap_mib * 0x1p20)
                                                       : LongestSequence(e, 1).peak(4 * start);
  std::vector<std::vector<std::string>> table{{"ranks along cp", "longest sequence", "of one rank's", "bytes at its peak"}};
  const std::int64_t without_tokens = LongestSequence(e, 1).peak(2);
  std::int64_t of_one = 0;
  for (int ranks = 1; ranks <= n; ++ranks) {
    if (n % ranks != 0) continue;
    LongestSequence search(e, ranks);
    if (!search.possible()) continue;
    const std::int64_t longest = search.under(cap, ranks * start);
    if (ranks == 1) of_one = longest;
    if (longest == 0) {
      table.push_back({fmt::format("{}", ranks), "none", "", ""});
      continue;
    }
    const double times = of_one == 0 ? 0 : static_cast<double>(longest) / static_cast<double>(of_one);
    // A tenth is for what a ring holds beside its layers' activations, and for the search's steps.
    const bool tokens_decide = of_one >= 256 && 2 * without_tokens <= cap && ring_is_small(e);
    if (e.world.is_root() && ranks > 1 && tokens_decide)
      e.report.claims.push_back(make_claim(fmt::format("longest sequence under the cap: {} ranks, times one's", ranks), ranks,
                                           times, 0.1, "", fmt::format("{} and {} tokens", longest, of_one)));
    table.push_back({fmt::format("{}", ranks), fmt::format("{}", longest), fmt::format("{:.3f}", times),
                     grouped_digits(search.peak(longest))});
  }
  if (e.prints())
    fmt::print("\nThe longest sequence under {:.2f} MiB a rank, {}\n{}", static_cast<double>(cap) / 0x1p20,
               dtype_name(e.options.dtype), format_table(table, "rrrr"));
}

}  // namespace ref5d::seq_context_parallel
