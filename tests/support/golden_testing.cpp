#include "tests/support/golden_testing.h"

#include <fmt/format.h>

#include <filesystem>

#include "common/io/json.h"
#include "common/io/safetensors.h"
#include "common/model/route_log.h"
#include "common/tensor/ignore_label.h"
#include "common/train/dump.h"
#include "common/verify/run_checks.h"
#include "common/verify/yardstick.h"

namespace ref5d::testing {

namespace {

GptConfig model_of(const Json& c) {
  auto n = [&](const char* key) { return c.at(key).as_int(); };
  const std::string family = c.at("family").as_string();
  GptConfig m = preset(family == "llama" ? "tiny" : "tiny-" + family);
  m.vocab = n("vocab");
  m.hidden = n("hidden");
  m.layers = n("layers");
  m.heads = n("heads");
  m.kv_heads = n("kv_heads");
  m.ffn = n("ffn");
  m.seq = n("seq");
  m.norm_eps = c.at("norm_eps").as_double();
  m.rope_theta = c.at("rope_theta").as_double();
  if (!m.has_experts()) return m;
  m.moe.experts = n("experts");
  m.moe.top_k = n("top_k");
  m.moe.shared_experts = n("shared_experts");
  m.moe.groups = n("groups");
  m.moe.top_groups = n("top_groups");
  m.moe.routed_scale = c.at("routed_scale").as_double();
  m.moe.aux_coefficient = c.at("aux_coef").as_double();
  m.moe.aux_kind = AuxKind::kMicroBatch;
  m.moe.bias_speed = 0;  // nothing but gradients moves anything there
  return m;
}

std::vector<std::int32_t> ints(const HostTensor& t) {
  std::vector<std::int32_t> out;
  for (double v : t.to_doubles()) out.push_back(static_cast<std::int32_t>(v));
  return out;
}

std::vector<Row> rows_of(const NamedTensors& tensors, std::int64_t batch, std::int64_t seq) {
  const auto tokens = ints(tensors.at("tokens")), labels = ints(tensors.at("labels"));
  const bool packed = tensors.contains("doc_ids");
  const auto documents = packed ? ints(tensors.at("doc_ids")) : std::vector<std::int32_t>(tokens.size(), 0);
  std::vector<Row> rows(static_cast<std::size_t>(batch));
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const auto t = static_cast<std::int32_t>(static_cast<std::int64_t>(i) % seq);
    Row& row = rows[i / static_cast<std::size_t>(seq)];
    row.tokens.push_back(tokens[i]);
    row.labels.push_back(labels[i]);
    row.order.push_back(t);
    ++row.useful;
    row.start.push_back(t > 0 && documents[i] == documents[i - 1] ? row.start.back() : t);
  }
  return rows;
}

NamedValues with_prefix(const NamedValues& all, const std::string& prefix) {
  NamedValues some;
  for (const auto& [name, values] : all) {
    if (name.starts_with(prefix)) some[name] = values;
  }
  return some;
}

// The same without the prefix.
NamedValues below(const NamedValues& all, const std::string& prefix) {
  NamedValues some;
  for (const auto& [name, values] : with_prefix(all, prefix)) some[name.substr(prefix.size())] = values;
  return some;
}

RunValues run_values(const NamedValues& dump, const OptimizerOptions& optimizer) {
  RunValues run;
  run.losses = dump.at("step_loss");
  run.grad_norms = dump.at("grad_norm");
  run.initial = below(dump, "init/");
  run.gradients = below(dump, "grad/");
  run.final_weights = below(dump, "final/");
  for (const auto& [name, values] : below(dump, "init/")) {  // PyTorch's file has no final value of what does not move
    if (run.gradients.contains(name)) continue;
    run.buffers[name] = run.final_weights.contains(name) ? run.final_weights.at(name) : values;
    run.initial.erase(name);
    run.final_weights.erase(name);
  }
  run.epsilon = optimizer.epsilon_before_clip(run.grad_norms[0]);
  return run;
}

}  // namespace

GoldenCase read_golden(const std::string& name) {
  const SafetensorsFile file(std::string(REF5D_SOURCE_DIR "/tests/oracle/golden/") + name + ".safetensors");
  GoldenCase g;
  for (const auto& n : file.names()) g.tensors[n] = file.read(n);
  const Json c = Json::parse(file.metadata().at("config"));
  g.model = model_of(c);
  g.optimizer.adamw = {c.at("lr").as_double(), c.at("beta1").as_double(), c.at("beta2").as_double(), c.at("eps").as_double(),
                       c.at("weight_decay").as_double()};
  g.optimizer.clip = c.at("clip").as_double();
  g.micro_batch = c.at("micro_batch").as_int();
  g.batch = c.at("batch").as_int();
  g.steps = c.at("steps").as_int();
  g.rows = rows_of(g.tensors, g.batch, g.model.seq);
  return g;
}

NamedValues run_case(const GoldenCase& golden, Dtype dtype, std::int64_t micro_batch, const ApplyLayout& apply) {
  TrainerOptions options;
  options.model = golden.model;
  options.storage.dtype = dtype;
  options.optimizer = golden.optimizer;
  options.micro_batch = micro_batch;
  options.global_batch = golden.batch;
  if (apply) apply(options);
  const Dataset data(golden.rows);
  Trainer trainer(options, data);
  std::vector<Parameter*> all = trainer.gpt().parameters();
  for (Parameter* p : trainer.gpt().buffers()) all.push_back(p);
  for (Parameter* p : all) load_weight(*p, golden.tensors.at("init/" + p->name), trainer.stream());

  DumpingRun dump(trainer, data, golden.batch, false);
  std::vector<double> losses;
  double aux_loss = 0;
  for (std::int64_t s = 0; s < golden.steps; ++s) {
    const StepResult r = trainer.step();
    if (s == 0) dump.after_first_step(r);
    losses.push_back(r.loss + r.aux_loss.value_or(0));
    if (s == 0) aux_loss = r.aux_loss.value_or(0);
  }
  NamedValues values;
  for (const auto& [name, t] : dump.finish(losses)) values[name] = t.to_doubles();
  values["aux_loss"] = {aux_loss};
  return values;
}

Verdict check_golden(const GoldenCase& golden, Dtype dtype, const ApplyLayout& apply, bool here) {
  NamedValues truth;
  for (const auto& [name, t] : golden.tensors) truth[name] = t.to_doubles();
  const bool fp64 = dtype == Dtype::kFp64;
  const double own_quality = dtype == Dtype::kFp32 ? 2e-5 : 5e-2;
  // Near-ties between experts are decided by rounding: so the lower precisions use the choices of fp64, which are compared with
  // PyTorch's.
  Routes routes{golden.model.seq, golden.model.moe.top_k, {}};
  RouteLog keep(routes, RouteLog::Mode::kKeep), replay(routes, RouteLog::Mode::kReplay);
  const bool replays = !fp64 && golden.model.has_experts();
  if (replays) (void)run_case(golden, Dtype::kFp64, golden.micro_batch, [&](TrainerOptions& o) { o.routes = &keep; });
  const auto with_routes = [&](const ApplyLayout& layout) {
    return [&, layout](TrainerOptions& o) {
      if (replays) o.routes = &replay;
      if (layout) layout(o);
    };
  };
  const NamedValues run = run_case(golden, dtype, golden.micro_batch, with_routes(apply));
  if (!here) return {};
  const std::int64_t whole_batch = golden.model.has_experts() ? golden.micro_batch : golden.batch;
  const NamedValues own = fp64 ? NamedValues{} : run_case(golden, dtype, whole_batch, with_routes({}));
  Verdict verdict;
  for (const char* what : {"loss", "aux_loss"})
    verdict.add_set(fmt::format("{} of the first step", what), compare_series(run.at(what), truth.at(what)),
                    least_tolerance(dtype));
  for (const char* prefix : {"hidden/", "logits"}) {
    const NamedValues expected = with_prefix(truth, prefix);
    const std::vector<NamedError> errors = compare_sets(with_prefix(run, prefix), expected, CompareKind::kActivation);
    if (fp64) {
      verdict.add_set(prefix, errors, least_tolerance(dtype));
      continue;
    }
    const std::vector<NamedError> own_errors = compare_sets(with_prefix(own, prefix), expected, CompareKind::kActivation);
    verdict.add_set(prefix, errors, yardstick_tolerances(dtype, own_errors));
    verdict.add_set(fmt::format("{} of the whole batch", prefix), own_errors, own_quality);
  }
  const RunValues exact = run_values(truth, golden.optimizer);
  const RunValues whole = fp64 ? RunValues{} : run_values(own, golden.optimizer);
  check_run(verdict, dtype, run_values(run, golden.optimizer), exact, fp64 ? nullptr : &whole);
  if (!fp64) {
    // The yardstick itself must be of its dtype's quality, or it would excuse anything.
    verdict.add_set("gradients of the whole batch", compare_sets(whole.gradients, exact.gradients, CompareKind::kGradient),
                    own_quality);
    verdict.add_set("updates of the whole batch", update_errors(whole, exact, KnownElements(whole, exact)), own_quality);
    verdict.add_set("losses of the whole batch", compare_series(whole.losses, exact.losses), own_quality);
    verdict.add_set("grad norms of the whole batch", compare_series(whole.grad_norms, exact.grad_norms), own_quality);
  }
  return verdict;
}

}  // namespace ref5d::testing
