// A model with a mixture of experts on one device: what it is made of, what a checkpoint keeps of it, and its backward.
#include <cmath>
#include <functional>
#include <ostream>
#include <random>

#include "common/device/error.h"
#include "common/io/safetensors.h"
#include "common/model/route_log.h"
#include "common/train/checkpoint.h"
#include "tests/support/io_testing.h"
#include "tests/support/kernel_testing.h"
#include "tests/support/model_testing.h"

namespace ref5d::testing {
namespace moe_model_test {

GptConfig small_mixture(const std::string& name) {
  GptConfig c = preset(name);
  c.vocab = 11;
  c.hidden = 8;
  c.layers = 2;
  c.heads = 4;
  c.kv_heads = 2;
  c.ffn = 6;
  c.seq = 6;
  c.init_std = 0.3;
  c.moe.aux_coefficient = 0.1;
  return c;
}

// All rows whole, the first of two documents; with padding behind the last.
std::vector<Row> mixture_rows(const GptConfig& c, std::int64_t count) {
  std::vector<Row> rows = some_rows(c, count);
  for (Row& row : rows) row.useful = c.seq;
  rows.back().useful = c.seq - 2;
  for (auto t = static_cast<std::size_t>(c.seq - 2); t < rows.back().tokens.size(); ++t) {
    rows.back().start[t] = rows.back().order[t];
    rows.back().labels[t] = kIgnoreLabel;
  }
  return rows;
}

TEST(MoeConfigs, WhatIsImpossibleIsRefused) {
  const struct {
    const char* model;
    void (*change)(GptConfig&);
    const char* message;
  } kCases[] = {
      {"tiny", [](GptConfig& c) { c.moe.experts = 8; }, "--experts is for models with experts; use --model tiny-mixtral or"},
      {"tiny-gpt2", [](GptConfig& c) { c.moe.experts = 8; }, "--experts is for models with experts"},
      {"tiny-mixtral", [](GptConfig& c) { c.moe.experts = 0; }, "needs --experts of at least 1; a dense model is tiny"},
      {"tiny-mixtral", [](GptConfig& c) { c.mlp = MlpKind::kGelu; }, "experts are SwiGLU without biases; leave out --mlp gelu"},
      {"tiny-deepseek", [](GptConfig& c) { c.biases = true; }, "experts are SwiGLU without biases"},
      {"tiny-deepseek", [](GptConfig& c) { c.moe.groups = 3; }, "--experts 8 is not divisible by --groups 3"},
      {"tiny-deepseek", [](GptConfig& c) { c.moe.groups = 0; }, "--experts 8 is not divisible by --groups 0"},
      {"tiny-deepseek", [](GptConfig& c) { c.moe.top_groups = 5; }, "--top-groups 5 must be from 1 to --groups 4"},
      {"tiny-deepseek", [](GptConfig& c) { c.moe.top_groups = 0; }, "--top-groups 0 must be from 1 to --groups 4"},
      {"tiny-deepseek", [](GptConfig& c) { c.moe.top_k = 5; },
       "--top-k 5 must be from 1 to the 4 experts that a token can use in"},
      {"tiny-mixtral", [](GptConfig& c) { c.moe.top_k = 9; }, "--top-k 9 must be from 1 to the 8 experts that a token can use"},
      {"tiny-mixtral", [](GptConfig& c) { c.moe.top_k = 0; }, "--top-k 0 must be from 1 to the 8"},
      {"tiny-mixtral", [](GptConfig& c) { c.moe.shared_experts = 1; }, "--shared-experts is for tiny-deepseek"},
      {"tiny-mixtral", [](GptConfig& c) { c.moe.correction_bias = true; }, "--correction-bias is for tiny-deepseek"},
      {"tiny-mixtral", [](GptConfig& c) { c.moe.bias_speed = 0.1; }, "--bias-speed moves a bias that the router has not"},
      {"tiny-deepseek", [](GptConfig& c) { c.moe.pad_to_capacity = true; }, "--pad-to-capacity needs a --capacity-factor"}};
  for (const auto& [model, change, message] : kCases) {
    GptConfig c = preset(model);
    validate(c);
    change(c);
    expect_contains(error_of<InputError>([&] { validate(c); }), message);
  }
  GptConfig most = preset("tiny-deepseek");
  most.moe.top_k = 4;
  validate(most);
  most.moe.top_groups = 4;
  most.moe.top_k = 8;
  validate(most);
}

TEST(MoeConfigs, ParameterCountIsTheSumOverTheModel) {
  for (const char* name : {"tiny-mixtral", "tiny-deepseek"}) {
    for (const std::int64_t experts : {1, 3, 8}) {
      for (const std::int64_t shared : {0, 1, 2}) {
        GptConfig c = preset(name);
        if (shared != c.moe.shared_experts && c.family == Family::kMixtral) continue;
        c.moe.experts = experts;
        c.moe.groups = c.moe.top_groups = c.moe.top_k = 1;
        c.moe.shared_experts = shared;
        c.qk_norm = shared == 2;
        const Gpt gpt(c);
        std::int64_t n = 0, used = 0;
        for (const Parameter* p : gpt.parameters()) {
          n += product(p->global_shape);
          const bool looked_up = p->name == "model.embed_tokens.weight",
                     other = p->name.find("experts.") != std::string::npos && p->name.find("experts.0.") == std::string::npos;
          if (p->global_shape.size() == 2 && !looked_up && (!other || p->name.find("shared") != std::string::npos))
            used += product(p->global_shape);
        }
        EXPECT_EQ(n, c.parameter_count()) << name << " " << experts << " " << shared;
        EXPECT_EQ(used, c.matmul_parameter_count()) << name << " " << experts << " " << shared;
      }
    }
  }
}

TEST(MoeConfigs, CapacityIsRoundedUp) {
  MoeConfig m;
  m.experts = 8;
  m.top_k = 2;
  m.capacity_factor = 1;
  EXPECT_EQ(m.capacity(24), 6);
  EXPECT_EQ(m.capacity(25), 7);
  EXPECT_EQ(m.capacity(1), 1);
  m.capacity_factor = 1.25;
  EXPECT_EQ(m.capacity(32), 10);
  EXPECT_EQ(m.capacity(33), 11);
  for (const std::int64_t tenths : {7, 11, 13, 23})  // factors that have no exact binary form
    for (std::int64_t tokens = 40; tokens < 4000; tokens += 40) {
      m.capacity_factor = static_cast<double>(tenths) / 10;
      EXPECT_EQ(m.capacity(tokens), tenths * tokens / 40) << tenths << " " << tokens;
      EXPECT_EQ(m.capacity(tokens + 1), (tenths * (tokens + 1) + 39) / 40) << tenths << " " << tokens;
    }
  m.capacity_factor = 0.5;
  EXPECT_EQ(m.capacity(24), 3);
  m.experts = 2;  // P53
  m.top_k = 1;
  m.capacity_factor = 1;
  EXPECT_EQ(m.capacity(8), 4);
  EXPECT_EQ(m.capacity(4), 2);
}

// The correction biases, one of each layer, are no parameters; they start at zero, and are exact in every dtype.
TEST(MoeBuffers, AreTheCorrectionBiases) {
  for (const char* name : {"tiny-mixtral", "tiny-deepseek"}) {
    const GptConfig c = small_mixture(name);
    Gpt gpt(c);
    const std::vector<Parameter*> buffers = gpt.buffers();
    ASSERT_EQ(buffers.size(), c.moe.correction_bias ? 2U : 0U);
    for (const Dtype dtype : {Dtype::kFp64, Dtype::kBf16}) {
      StorageOptions storage;
      storage.dtype = dtype;
      gpt.materialise(storage, device().compute());
      for (std::size_t layer = 0; layer < buffers.size(); ++layer) {
        const Parameter& p = *buffers[layer];
        EXPECT_EQ(p.name, "model.layers." + std::to_string(layer) + ".mlp.gate.e_score_correction_bias");
        EXPECT_EQ(p.global_shape, (Shape{8}));
        EXPECT_EQ(values_of(p.weight), std::vector<double>(8, 0.0));
        EXPECT_EQ(p.weight.dtype(), accumulator_of(dtype));
        EXPECT_FALSE(p.gradient);
        for (const Parameter* q : gpt.parameters()) EXPECT_NE(q, &p);
      }
    }
  }
}

// A run that is saved after two steps and resumed goes on bitwise, its biases included; --load takes them from the file.
TEST(MoeCheckpoints, KeepTheCorrectionBiases) {
  GptConfig c = small_mixture("tiny-deepseek");
  c.moe.bias_speed = 0.02;
  for (const Dtype dtype : {Dtype::kFp64, Dtype::kBf16}) {
    TrainerOptions o = options_for(c, 4, 2);
    o.storage.dtype = dtype;
    const Dataset data(mixture_rows(c, 16));
    const TempDir dir;
    Trainer whole(o, data), part(o, data), resumed(o, data);
    for (int s = 0; s < 3; ++s) (void)whole.step();
    for (int s = 0; s < 2; ++s) (void)part.step();
    save(part, dir.path("ck"));
    const NamedValues saved = part.buffers();
    ASSERT_EQ(saved.size(), 2U);
    for (const auto& [name, values] : saved) {
      double moved = 0;
      for (const double x : values) moved += std::abs(x);
      EXPECT_GT(moved, 0.02) << name;
      EXPECT_EQ(SafetensorsFile(dir.path("ck") + "/step_2/model.safetensors").read(name).to_doubles(), values);
    }
    resume(resumed, dir.path("ck"));
    EXPECT_EQ(resumed.buffers(), saved);
    (void)resumed.step();
    EXPECT_EQ(resumed.buffers(), whole.buffers());
    EXPECT_EQ(resumed.weights(), whole.weights());

    TrainerOptions loading = o;
    loading.load = dir.path("ck") + "/step_2/model.safetensors";
    EXPECT_EQ(Trainer(loading, data).buffers(), saved);
    loading.model.moe.correction_bias = false;
    loading.model.moe.bias_speed = 0;
    expect_contains(error_of<InputError>([&] { Trainer(loading, data); }), "e_score_correction_bias");
  }
}

// One block whose tokens' experts are given, and a loss: weights times its output, and its auxiliary losses.
class OneBlock {
 public:
  OneBlock(const GptConfig& c, Recompute recompute)
      : config_(c), gpt_(c), rows_(mixture_rows(c, 2)), routes_{c.seq, c.moe.top_k, {}}, ctx_(device().compute()) {
    StorageOptions storage;
    storage.dtype = ctx_.dtype = Dtype::kFp64;
    gpt_.materialise(storage, ctx_.stream);
    Loader loader(c, ctx_.dtype, ctx_.stream);
    loader.start(rows_, 0);
    batch_ = loader.take(1.0);
    batch_.aux_loss_scale = 0.5;
    ctx_.batch = &batch_;
    ctx_.recompute = recompute;
    ctx_.weight_grads = &weight_grads_;
    ctx_.routes = &log_;
    ctx_.aux_loss_sum = Tensor::zeros({1}, Dtype::kFp64, MemoryCategory::kWorkspace, ctx_.stream);
    const std::int64_t n = batch_.token_count() * c.hidden;
    x = random_values(n, 3);
    weights_ = random_values(n, 4);
    for (const auto& p : block().parameters())  // norms of ones would hide what multiplies by them
      if (p->global_shape.size() == 1)
        load_weight(*p, HostTensor::from_doubles(random_values(c.hidden, 5), {c.hidden}, Dtype::kFp64), ctx_.stream);
  }
  Block& block() { return *gpt_.blocks[0]; }
  Stream& stream() { return ctx_.stream; }

  double loss() {
    fill_zero(ctx_.stream, ctx_.aux_loss_sum.raw(), ctx_.aux_loss_sum.bytes());
    saved_ = {};
    const std::vector<double> y = values_of(block().forward(ctx_, tensor(x), saved_));
    double sum = values_of(ctx_.aux_loss_sum)[0];
    for (std::size_t i = 0; i < y.size(); ++i) sum += weights_[i] * y[i];
    return sum;
  }
  std::vector<double> dx() {
    for (const auto& p : block().parameters()) p->begin_step(ctx_.stream, 1);
    (void)loss();
    std::vector<double> gradient = values_of(block().backward(ctx_, tensor(weights_), saved_));
    weight_grads_.run_all();
    EXPECT_TRUE(saved_.empty());
    return gradient;
  }
  std::vector<double> x;

 private:
  [[nodiscard]] Tensor tensor(const std::vector<double>& values) const {
    return device_tensor(values, {batch_.token_count(), config_.hidden}, Dtype::kFp64);
  }

  GptConfig config_;
  Gpt gpt_;
  std::vector<Row> rows_;
  Routes routes_;
  RouteLog log_{routes_, RouteLog::Mode::kKeep};  // keeps the choices of the first forward
  WeightGrads weight_grads_;
  Context ctx_;
  MicroBatch batch_;
  std::vector<double> weights_;
  Saved saved_;
};

#ifdef REF5D_EMU
constexpr int kElements = 1;  // a pass takes it long
#else
constexpr int kElements = 6;
#endif

// Central differences of some of the elements.
void expect_derivative(OneBlock& block, std::vector<double>& values, const std::vector<double>& gradient,
                       const std::function<void()>& changed, const std::string& what) {
  std::mt19937 generator(7);
  std::vector<double> analytic, numeric;
  for (int sample = 0; sample < kElements; ++sample) {
    const std::size_t i = generator() % values.size();
    const double kept = values[i], h = 1e-5;
    const auto at = [&](double value) {
      values[i] = value;
      changed();
      return block.loss();
    };
    const double up = at(kept + h), down = at(kept - h);
    numeric.push_back((up - down) / (2 * h));
    values[i] = kept;
    changed();
    analytic.push_back(gradient[i]);
  }
  EXPECT_LE(tensor_error(analytic, numeric, 1e-3).relative, 1e-6) << what;
}

struct MixtureCase {
  const char* name;
  const char* model;
  void (*change)(GptConfig&);
  Recompute recompute = Recompute::kNone;
};
void PrintTo(const MixtureCase& c, std::ostream* out) { *out << c.name; }
const MixtureCase kMixtures[] = {
    {"Mixtral", "tiny-mixtral", [](GptConfig&) {}},
    {"Deepseek", "tiny-deepseek", [](GptConfig& c) { c.moe.z_coefficient = 0.2; }},
    {"AloneNotRenormalised", "tiny-mixtral", [](GptConfig& c) { c.moe.top_k = 1, c.moe.renormalise = false; }},
    {"AloneRenormalised", "tiny-deepseek", [](GptConfig& c) { c.moe.top_k = 1, c.moe.aux_coefficient = 0; }},
    {"Dropped", "tiny-mixtral",
     [](GptConfig& c) { c.moe.capacity_factor = 0.5, c.moe.experts = 4, c.moe.z_coefficient = 0.2; }},
    {"DroppedOfFour", "tiny-deepseek", [](GptConfig& c) { c.moe.capacity_factor = 0.5, c.moe.top_k = 4; }, Recompute::kFull},
    {"Padded", "tiny-deepseek", [](GptConfig& c) { c.moe.capacity_factor = 1, c.moe.pad_to_capacity = true; }},
    {"BySequence", "tiny-mixtral", [](GptConfig& c) { c.moe.aux_kind = AuxKind::kSequence; }, Recompute::kSelective}};

class Mixtures : public ::testing::TestWithParam<MixtureCase> {};

// dx, and every parameter's gradient: the router's, all experts', those without tokens included, and the shared ones'.
TEST_P(Mixtures, BackwardIsTheDerivativeOfForward) {
  GptConfig c = small_mixture(GetParam().model);
  GetParam().change(c);
  validate(c);
  OneBlock block(c, GetParam().recompute);
  const std::vector<double> dx = block.dx();
  expect_derivative(
      block, block.x, dx, [] {}, "x");
  int routers = 0;
  for (const auto& p : block.block().parameters()) {
    EXPECT_EQ(p->pending(), 0) << p->name;
    std::vector<double> w = values_of(p->weight);
    const auto changed = [&] { load_weight(*p, HostTensor::from_doubles(w, p->global_shape, Dtype::kFp64), block.stream()); };
    expect_derivative(block, w, values_of(p->gradient), changed, p->name);
    routers += p->name.ends_with("gate.weight") ? 1 : 0;
  }
  EXPECT_EQ(routers, 1);
}

INSTANTIATE_TEST_SUITE_P(Models, Mixtures, ::testing::ValuesIn(kMixtures), [](const auto& test) { return test.param.name; });

// Dropped choices leave a token what it was, and its experts' weights without its part.
TEST(MoeCapacity, DroppedChoicesAddNothing) {
  GptConfig c = small_mixture("tiny-mixtral");
  c.layers = 1;
  c.moe.top_k = 1;
  c.moe.renormalise = false;
  c.moe.aux_coefficient = 0;
  const std::vector<Row> rows = mixture_rows(c, 2);
  const Dataset data(rows);
  TrainerOptions o = options_for(c, 2, 2);
  Routes routes{c.seq, 1, {}};
  for (std::int64_t s : {0, 1}) routes.chosen[{0, s}] = {3, 3, 3, 3, 3, 3};
  RouteLog log(routes, RouteLog::Mode::kReplay);
  o.routes = &log;
  Trainer all(o, data);
  const StepResult undropped = all.step();
  o.model.moe.capacity_factor = 4;  // of 12 tokens the first six
  Trainer some(o, data);
  const StepResult dropped = some.step();
  const auto sent = [](const StepResult& r) { return std::vector<double>(r.router_load.begin() + 16, r.router_load.end()); };
  EXPECT_EQ(sent(undropped), (std::vector<double>{0, 0, 0, 12, 0, 0, 0, 0}));
  EXPECT_EQ(sent(dropped), (std::vector<double>{0, 0, 0, 6, 0, 0, 0, 0}));
  EXPECT_EQ(undropped.router_load[3], 10) << "padding is not counted";
  EXPECT_EQ(dropped.router_load[3], 10) << "choices are counted before any is dropped";
  EXPECT_NE(undropped.loss, dropped.loss);
}

}  // namespace moe_model_test
}  // namespace ref5d::testing
