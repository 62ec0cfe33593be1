// How a schedule is executed: what a rank keeps, when a buffer goes, which message is which, and when weight gradients run.
#include <cmath>
#include <limits>

#include "05_pipeline/claims.h"
#include "05_pipeline/schedule_csv.h"
#include "tests/support/kernel_testing.h"
#include "tests/support/pipeline_testing.h"

namespace ref5d::testing {
namespace pipeline_runtime_test {

class PipelineRuntime : public PipelineTest {
 protected:
  // Micro-batches that make every schedule do all it does.
  [[nodiscard]] int enough(const std::string& name) const { return nearest_micro_batches(name, n_, n_ > 4 ? 4 : n_ + 2); }
};

// Buffers that hold NaN as soon as they are given away, for every schedule, with recomputation and several runs.
TEST_F(PipelineRuntime, P39_NobodyReadsABufferThatWasGivenAway) {
  NEEDS_RANKS(2);
  auto mesh = pipeline_slice({.pp = n_});
  const Recompute recompute[] = {Recompute::kNone, Recompute::kFull, Recompute::kSelective};
  std::size_t turn = 0;
  for (const std::string& name : published_schedules(n_)) {
    const std::size_t now = turn++;
    if (n_ > 4 && now % 2 != 0) continue;
    if (kEmulated && now % 4 != 1) continue;
    pipeline::Lesson lesson = pipeline_lesson(name, n_, enough(name));
    lesson.pipeline.links.poison = true;
    TrainerOptions o =
        pipelined_options(with_layers(variant("llama_tied"), stages_of(lesson)), lesson, 1, now % 2 == 0 ? 1 : 2);
    o.recompute = recompute[now % 3];
    expect_as_alone(*mesh, o, lesson, "llama_tied");
    if (n_ > 2 && now % 3 != 0) continue;
    lesson.pipeline.links.reuse_before_sent = true;
    const std::string found = pipeline_departure(*mesh, o, lesson, "llama_tied");
    EXPECT_TRUE(mesh->everyone().rank != 0 || !found.empty()) << text(lesson);
  }
}

// Boundaries of a mebibyte, which MPI sends only when they are received.
TEST_F(PipelineRuntime, P38_LongMessages) {
  NEEDS_RANKS(2);
  if (n_ > 2 || kEmulated) return;
  auto mesh = pipeline_slice({.pp = n_});
  SingleRuns alone(1);
  for (const char* name : {"1f1b", "interleaved"}) {
    pipeline::Lesson lesson = pipeline_lesson(name, n_, nearest_micro_batches(name, n_, 2));
    lesson.pipeline.links.poison = true;
    GptConfig c = with_length(with_layers(small(), stages_of(lesson)), 64);
    c.heads = 2, c.kv_heads = 1, c.hidden = 64, c.ffn = 8;
    const TrainerOptions o = pipelined_options(c, lesson, 1, 1, 32);
    EXPECT_EQ(o.micro_batch * c.seq * c.hidden * 8, 1 << 20);
    EXPECT_EQ(departure(*mesh, train_through(*mesh, o, lesson, alone.data(o), 1), alone.of(*mesh, o, "long")), "")
        << text(lesson);
  }
}

struct LiveBytes {
  std::int64_t activations, weight_work, communication;
  friend bool operator==(const LiveBytes&, const LiveBytes&) = default;
};
LiveBytes live_bytes() {
  const MemoryLedger& ledger = device().memory();
  return {ledger.current(MemoryCategory::kActivations), ledger.current(MemoryCategory::kDeferredWeightGradients),
          ledger.current(MemoryCategory::kCommunication)};
}

std::int64_t most_activations(const std::vector<pipeline::CellMemory>& memory) {
  std::int64_t most = 0;
  for (const pipeline::CellMemory& m : memory) most = std::max(most, m.activations);
  return most;
}

// What every step leaves is what was there before it, and after every cell the ledger has what the schedule keeps then.
TEST_F(PipelineRuntime, P42_LiveBytesReturnToTheBaseline) {
  NEEDS_RANKS(2);
  auto mesh = pipeline_slice({.pp = n_});
  std::size_t turn = 0;
  for (const std::string& name : published_schedules(n_)) {
    for (const Recompute recompute : {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
      const std::size_t now = turn++;
      if ((n_ > 2 || kEmulated) && now % (n_ > 4 ? 4 : 2) != 0) continue;
      const pipeline::Lesson lesson = pipeline_lesson(name, n_, enough(name));
      TrainerOptions o =
          pipelined_options(with_layers(variant("llama_qk_norm"), stages_of(lesson)), lesson, 1, now % 2 == 0 ? 1 : 2);
      o.recompute = recompute;
      const StageSettings settings = through_stages(*mesh, o, lesson);
      const Dataset data = alone_.data(o);
      Trainer trainer(settings.options, data);
      const LiveBytes before = live_bytes();
      for (int step = 0; step < 2; ++step) {
        (void)trainer.step();
        EXPECT_TRUE(live_bytes() == before) << text(lesson) << ", step " << step;
      }
      const int rank = (*mesh)["pp"].rank();
      const std::vector<pipeline::CellMemory>& memory = settings.pipeline->records().memory();
      const pipeline::RankCounts counts = pipeline::count(settings.pipeline->plan(), rank, memory, 0);
      EXPECT_EQ(memory.size(), settings.pipeline->plan().schedule.ranks[std::size_t(rank)].size());
      EXPECT_EQ(counts.differing_cells, 0) << text(lesson) << ", recompute " << static_cast<int>(recompute);
      const int m = lesson.schedule.micro_batches;
      const bool one_by_one = name == "1f1b" || name == "zb-h1";
      if (one_by_one || name == "gpipe") {
        EXPECT_EQ(most_activations(memory), (one_by_one ? std::min(m, n_ - rank) : m) * memory.at(0).activations) << name;
      }
    }
  }
}

// Rows of so many, of which each `batch` are two tokens shorter than those before.
Dataset shortening_rows(const GptConfig& c, std::int64_t count, std::int64_t batch) {
  std::vector<Row> rows = some_rows(c, count);
  for (std::size_t r = 0; r < rows.size(); ++r) {
    const auto length = static_cast<std::size_t>(c.seq - static_cast<std::int64_t>(r) / batch * 2);
    rows[r].tokens.resize(length), rows[r].labels.resize(length), rows[r].order.resize(length), rows[r].start.resize(length);
  }
  return Dataset(rows);
}

// Rows of another length in every step, or in every run of the schedule: nothing of a stage is made for one length, and what
// has been summed stays.
TEST_F(PipelineRuntime, P45_TheLengthOfRowsChanges) {
  NEEDS_RANKS(2);
  if (n_ > 4) return;
  auto mesh = pipeline_slice({.pp = n_});
  for (const std::string& name : published_schedules(n_)) {
    if ((n_ > 2 || kEmulated) && name != "1f1b" && name != "zb-v" && name != "dualpipe") continue;
    for (const std::int64_t runs : {1, 2}) {
      const pipeline::Lesson lesson = pipeline_lesson(name, n_, enough(name));
      const TrainerOptions o = pipelined_options(with_layers(variant("llama_tied"), stages_of(lesson)), lesson, 1, runs);
      const Dataset data = shortening_rows(o.model, 2 * o.global_batch, lesson.schedule.micro_batches);
      RunValues truth;
      if (mesh->everyone().rank == 0) {
        Trainer trainer(o, data);
        truth = values_of_steps(trainer, 2, true);
      }
      EXPECT_EQ(departure(*mesh, train_through(*mesh, o, lesson, data, 2), truth), "") << text(lesson) << ", " << runs;
    }
  }
}

// Two ranks are each other's neighbours on both sides: between them go messages of two boundaries, in both directions.
TEST_F(PipelineRuntime, P37_EachMessageIsTheOneThatIsNeeded) {
  NEEDS_RANKS(2);
  if (n_ > 2) return;
  auto mesh = pipeline_slice({.pp = 2});
  for (const int chunks : {2, 3}) {
    for (const int m : {3, 5}) {
      pipeline::Lesson lesson = pipeline_lesson("interleaved", 2, m, chunks);
      const TrainerOptions o = pipelined_options(with_layers(small(), 2 * chunks), lesson);
      expect_as_alone(*mesh, o, lesson, "small");
      if (m < 5) continue;
      lesson.pipeline.faults.receives_by_need = true;
      const std::string found = pipeline_departure(*mesh, o, lesson, "small");
      EXPECT_TRUE(mesh->everyone().rank != 0 || !found.empty()) << text(lesson);
    }
  }
}

// Loss = sum of x W W with x = [1, 2], W = [[1, 2], [3, 4]]: one weight in two layers.
struct TwiceTheSameWeight {
  explicit TwiceTheSameWeight(bool defer) : linear("w", 2, 2, false, true, 0.1), ctx(stream) {
    Parameter& w = *linear.weight;
    materialise(w, storage_of(Dtype::kFp64), stream);
    load_weight(w, HostTensor::from_doubles({1, 2, 3, 4}, {2, 2}, Dtype::kFp64), stream);
    w.uses = 2;
    w.begin_step(stream, 1);
    w.on_final.emplace_back([this](Parameter& p, Stream& s) {
      at_the_end = p.final_gradient().to_doubles(s);
      EXPECT_TRUE(work.empty());
      ++finals;
      return &s;
    });
    ctx.dtype = Dtype::kFp64;
    ctx.weight_grads = &work;
    work.defer(defer);
  }

  // Forward and backward of both layers; everything but what the queue owns goes, and its memory is written over.
  void pass() {
    Tensor x = device_tensor({1, 2}, {1, 2}, Dtype::kFp64), h = linear.forward(ctx, x), y = linear.forward(ctx, h);
    EXPECT_EQ(y.to_doubles(stream), (std::vector<double>{37, 54}));
    Tensor dy = device_tensor({1, 1}, {1, 2}, Dtype::kFp64), dh = ctx.activation({1, 2}), dx = ctx.activation({1, 2});
    linear.backward_weight(ctx, h, dy);
    linear.backward_input(ctx, dh, dy, false);
    work.run_ready();
    linear.backward_weight(ctx, x, dh);
    linear.backward_input(ctx, dx, dh, false);
    work.run_ready();
    input_gradient = dx.to_doubles(stream);
    for (Tensor* t : {&x, &h, &y, &dy, &dh, &dx}) *t = {};
    for (int i = 0; i < 6; ++i) poison.push_back(ctx.activation({1, 2}));
    for (const Tensor& t : poison) fill_constant(stream, t, std::numeric_limits<double>::quiet_NaN());
  }

  Stream& stream = device().compute();
  Linear linear;
  Context ctx;
  WeightGrads work;
  int finals = 0;
  std::vector<double> at_the_end, input_gradient;
  std::vector<Tensor> poison;
};

// Its gradient is [[10, 14], [16, 24]], at once or much later. ([[13, 21], [22, 38]] would be one of the layers counted twice.)
TEST_F(PipelineRuntime, T6_AWeightInTwoLayersWhoseGradientWaits) {
  tries_one();  // no layout of ranks takes part
  for (const bool defer : {false, true}) {
    TwiceTheSameWeight model(defer);
    model.pass();
    EXPECT_EQ(model.input_gradient, (std::vector<double>{17, 37}));
    EXPECT_EQ(model.finals, defer ? 0 : 1);
    EXPECT_EQ(model.linear.weight->pending(), defer ? 2 : 0);
    EXPECT_EQ(model.work.empty(), !defer);
    model.work.run_all();
    EXPECT_EQ(model.finals, 1);
    EXPECT_EQ(model.at_the_end, (std::vector<double>{10, 14, 16, 24})) << defer;
    EXPECT_EQ(model.linear.weight->final_gradient().to_doubles(model.stream), model.at_the_end);
  }
}

// The schedule with every rank's W after everything else.
pipeline::Schedule with_weights_last(pipeline::Schedule schedule) {
  for (std::vector<pipeline::Cell>& row : schedule.ranks)
    std::stable_partition(row.begin(), row.end(),
                          [](const pipeline::Cell& cell) { return cell.operation.pass != pipeline::Pass::kWeight; });
  schedule.name = "custom";
  return schedule;
}

// Every W at the end of the run, of tied weights too, after a memory full of NaN: nothing is reduced before it.
TEST_F(PipelineRuntime, T6_EveryWeightGradientAtTheEnd) {
  NEEDS_RANKS(2);
  const int dp = n_ > 2 && n_ % 2 == 0 ? 2 : 1, pp = n_ / dp;
  auto mesh = pipeline_slice({.pp = pp, .dp = dp});
  for (const char* name : {"zb-h1", "zb-v", "zb-h2"}) {
    for (const char* kind : {"ddp", "zero1", "zero2"}) {
      if ((n_ > 4 || kEmulated) && std::string(name) != "zb-v") continue;
      pipeline::Lesson lesson = pipeline_lesson(name, pp, 3, 2, strategy_case(kind));
      lesson.pipeline.links.poison = true;
      const TrainerOptions o = pipelined_options(with_layers(variant("llama_tied"), stages_of(lesson)), lesson, dp, 2);
      const auto plan = pipeline::make_plan(with_weights_last(pipeline::make_schedule(lesson.schedule)), o.model.layers);
      const StageSettings settings = through_stages(*mesh, o, lesson, plan);
      EXPECT_EQ(departure(*mesh, train_through(settings, alone_.data(o), 2), alone_.of(*mesh, o, "llama_tied")), "")
          << text(lesson) << ", " << kind;
    }
  }
}

// A schedule that was written down and read again is the same one.
TEST_F(PipelineRuntime, ASchedulesCsvRunsAsTheScheduleDoes) {
  NEEDS_RANKS(2);
  if (n_ > 4) return;
  auto mesh = pipeline_slice({.pp = n_});
  for (const char* name : {"zb-h1", "interleaved", "dualpipev"}) {
    const pipeline::Lesson lesson = pipeline_lesson(name, n_, nearest_micro_batches(name, n_, 3));
    const pipeline::Schedule schedule = pipeline::make_schedule(lesson.schedule);
    const pipeline::Schedule read = pipeline::parse_csv(pipeline::to_csv(schedule), "a text");
    const TrainerOptions o = pipelined_options(with_layers(small(), schedule.stages), lesson);
    const StageSettings settings = through_stages(*mesh, o, lesson, pipeline::make_plan(read, o.model.layers));
    const Dataset data = alone_.data(o);
    EXPECT_TRUE(same_bits(*mesh, train_through(settings, data, 2), train_through(*mesh, o, lesson, data, 2))) << name;
  }
}

// Two runs give the same bits, in whatever order the streams' work becomes ready.
TEST_F(PipelineRuntime, TwoRunsAreEqualInEveryBit) {
  NEEDS_RANKS(2);
  auto mesh = pipeline_slice({.pp = n_});
  for (const std::string& name : published_schedules(n_)) {
    if ((n_ > 4 || kEmulated) && name != "dualpipe") continue;
    const pipeline::Lesson lesson = pipeline_lesson(name, n_, enough(name));
    const TrainerOptions o = pipelined_options(with_layers(variant("gpt2"), stages_of(lesson)), lesson);
    const Dataset data = alone_.data(o);
    const RunValues first = train_through(*mesh, o, lesson, data, 2);
    for (std::uint64_t seed = kEmulated ? 1 : 0; seed < (n_ > 2 ? 1 : 4); ++seed) {
      set_order_seed(seed);
      EXPECT_TRUE(same_bits(*mesh, train_through(*mesh, o, lesson, data, 2), first)) << text(lesson) << ", seed " << seed;
    }
    set_order_seed(0);
  }
}

// All ranks of a pipeline call its collectives in one order, whatever the schedule.
TEST_F(PipelineRuntime, OneOrderOfCalls) {
  NEEDS_RANKS(4);
  if (n_ > 4 || kEmulated) return;
  auto mesh = pipeline_slice({.pp = 2, .dp = 2});
  for (const std::string& name : published_schedules(2)) {
    world().order().enable(true);
    const pipeline::Lesson lesson = pipeline_lesson(name, 2, nearest_micro_batches(name, 2, 3), 2, strategy_case("zero2"));
    const TrainerOptions o = pipelined_options(with_layers(variant("llama_tied"), stages_of(lesson)), lesson, 2);
    (void)train_through(*mesh, o, lesson, alone_.data(o), 1);
    EXPECT_NO_THROW(world().order().finish(world().everyone())) << text(lesson);
    world().order() = OrderLedger();
  }
}

}  // namespace pipeline_runtime_test
}  // namespace ref5d::testing
