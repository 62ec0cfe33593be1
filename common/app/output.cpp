#include "common/app/output.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "common/app/version.h"
#include "common/device/device.h"
#include "common/device/error.h"
#include "common/io/safetensors.h"
#include "common/io/trace.h"
#include "common/train/checkpoint.h"
#include "common/train/generate.h"

namespace ref5d {

namespace fs = std::filesystem;

namespace {

// Whether files can be made in a folder: some, such as /proc, look as if they could.
bool takes_files(const fs::path& folder) {
  if (access(folder.c_str(), W_OK) != 0) return false;
  std::string name = (folder / "ref5d.XXXXXX").string();
  const int fd = mkstemp(name.data());
  if (fd < 0) return false;
  close(fd);
  unlink(name.c_str());
  return true;
}

void check_file(const char* flag, const std::string& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (error && error != std::errc::no_such_file_or_directory && error != std::errc::not_a_directory)
    throw InputError(fmt::format("{} {}: {}; give the name of a file", flag, path, error.message()));
  if (fs::is_directory(status)) throw InputError(fmt::format("{} {} is a folder; give the name of a file", flag, path));
  if (fs::exists(status) && !fs::is_regular_file(status)) return;  // a pipe, /dev/null
  const fs::path folder = fs::path(path).has_parent_path() ? fs::path(path).parent_path() : fs::path(".");
  if (!fs::is_directory(folder, error))
    throw InputError(fmt::format("{} {}: the folder {} does not exist; make it first", flag, path, folder.string()));
  if (!takes_files(folder))
    throw InputError(fmt::format("{} {}: the folder {} cannot be written", flag, path, folder.string()));
}

// The folder itself, or the nearest above it that exists, must be one in which folders can be made.
void check_save_folder(const std::string& path) {
  std::error_code error;
  fs::path existing = fs::absolute(path, error).lexically_normal();
  if (fs::is_symlink(existing, error) && !fs::exists(existing, error))
    throw InputError(fmt::format("--save {} is a link to nothing; give the name of a folder", path));
  while (!fs::exists(existing, error) && existing.has_relative_path()) existing = existing.parent_path();
  if (!fs::is_directory(existing, error))
    throw InputError(fmt::format("--save {}: {} is a file; give the name of a folder", path, existing.string()));
  if (!takes_files(existing))
    throw InputError(fmt::format("--save {}: the folder {} cannot be written", path, existing.string()));
}

// Whether writing `output` would replace (part of) what is read from `input`, a file or a folder.
bool replaces(const std::string& output, const std::string& input) {
  std::error_code error;
  if (output.empty() || input.empty() || fs::is_other(output, error)) return false;
  const auto where = [&](const std::string& path) { return fs::weakly_canonical(fs::absolute(path, error), error); };
  const fs::path to = where(output), from = where(input);
  const auto [end_of_from, unused] = std::mismatch(from.begin(), from.end(), to.begin(), to.end());
  return !from.empty() && end_of_from == from.end();
}

}  // namespace

void check_output_paths(const Options& o, const std::vector<OutputFile>& more) {
  std::vector<OutputFile> files{{"--json", o.json}, {"--trace", o.trace}, {"--dump", o.dump}};
  files.insert(files.end(), more.begin(), more.end());
  std::erase_if(files, [](const OutputFile& f) { return f.path.empty(); });
  if (!o.save.empty()) check_save_folder(o.save);
  for (const auto& [flag, path] : files) {
    for (const auto& [input, read] : {std::pair{"--data", o.data}, {"--load", o.load}, {"--resume", o.resume}}) {
      if (replaces(path, read))
        throw InputError(fmt::format("{} {} would replace what {} reads; give another file", flag, path, input));
    }
    check_file(flag, path);
    for (const auto& [other, other_path] : files) {
      if (flag != other && replaces(path, other_path))
        throw InputError(fmt::format("{} and {} both write {}; give each a file of its own", flag, other, path));
    }
    if (replaces(path, o.save))
      throw InputError(fmt::format("{} {} would write over what --save {} writes; give another file", flag, path, o.save));
  }
}

std::vector<TraceSpan> profiled_spans(int rank) {
  std::vector<TraceSpan> spans;
  for (const Span& s : device().profiler().spans())
    spans.push_back({rank, s.stream, s.name, s.start_us, s.duration_us, "", {}});
  return spans;
}

RunOutputs::RunOutputs(Trainer& trainer, const Dataset& data, const Options& options, std::int64_t global_batch, bool writes)
    : trainer_(trainer), options_(options), writes_(writes) {
  if (!options.dump.empty()) dump_.emplace(trainer, data, global_batch, options.dump_level == "full");
  if (!options.trace.empty()) device().profiler().start();
}

void RunOutputs::after_step(std::int64_t step, const StepResult& result) {
  if (step != 0) return;
  if (dump_) dump_->after_first_step(result);
}

void RunOutputs::finish(const RunRecord& record) {
  if (!options_.trace.empty()) {
    device().synchronize();
    device().profiler().stop();
    std::vector<TraceSpan> spans = profiled_spans(0);
    if (gather_spans) spans = gather_spans(spans);
    if (writes_) write_trace(options_.trace, spans);
  }
  if (dump_) {
    const GptConfig& c = trainer_.gpt().config();
    const NamedTensors& tensors = dump_->finish(record.losses());
    if (writes_)
      write_safetensors(options_.dump, tensors,
                        {{"format", "pt"},
                         {"program", "ref5d"},
                         {"version", kVersion},
                         {"model", c.preset},
                         {"dtype", dtype_name(options_.dtype)},
                         {"seed", std::to_string(options_.seed)}});
  }
  if (!options_.save.empty()) save(trainer_, options_.save, writes_);
}

std::string RunOutputs::sample() const {
  if (options_.sample == 0 || options_.quiet) return "";
  const std::string prompt = "The ";
  return fmt::format("A sample, {} bytes after \"{}\":\n{}\n", options_.sample, prompt,
                     generate_text(trainer_, prompt, options_.sample, 0.8, static_cast<std::uint64_t>(options_.seed)));
}

namespace {

void set_experts(ValueList& config, const MoeConfig& m) {
  for (const auto& [key, value] : {std::pair{"experts", m.experts},
                                   {"top-k", m.top_k},
                                   {"shared-experts", m.shared_experts},
                                   {"groups", m.groups},
                                   {"top-groups", m.top_groups}}) {
    set_value(config, key, value);
  }
  set_value(config, "score", std::string(kind_name(m.score)));
  set_value(config, "aux-kind", std::string(kind_name(m.aux_kind)));
  for (const auto& [key, on] : {std::pair{"renormalise", m.renormalise},
                                {"correction-bias", m.correction_bias},
                                {"pad-to-capacity", m.pad_to_capacity}}) {
    set_value(config, key, on);
  }
  for (const auto& [key, value] : {std::pair{"routed-scale", m.routed_scale},
                                   {"aux-coef", m.aux_coefficient},
                                   {"z-coef", m.z_coefficient},
                                   {"bias-speed", m.bias_speed},
                                   {"capacity-factor", m.capacity_factor}}) {
    set_value(config, key, value);
  }
}

}  // namespace

Report new_report(const std::string& program, const Options& options, const GptConfig& model) {
  Report report;
  report.program = program;
  report.version = kVersion;
  report.mode = Device::mode();
  report.config = to_config(options);
  set_value(report.config, "parameters", model.parameter_count());
  for (const auto& [key, value] : {std::pair{"layers", model.layers},
                                   {"hidden", model.hidden},
                                   {"heads", model.heads},
                                   {"kv-heads", model.kv_heads},
                                   {"ffn", model.ffn},
                                   {"vocab", model.vocab},
                                   {"seq", model.seq}}) {
    set_value(report.config, key, value);
  }
  for (const auto& [key, kind] :
       {std::pair{"norm", kind_name(model.norm)}, {"position", kind_name(model.position)}, {"mlp", kind_name(model.mlp)}}) {
    set_value(report.config, key, std::string(kind));
  }
  for (const auto& [key, on] : {std::pair{"qk-norm", model.qk_norm}, {"biases", model.biases}, {"tied", model.tied}})
    set_value(report.config, key, on);
  for (const auto& [key, value] : {std::pair{"norm-eps", model.norm_eps},
                                   {"rope-theta", model.rope_theta},
                                   {"init-std", model.init_std},
                                   {"dropout", model.dropout}}) {
    set_value(report.config, key, value);
  }
  if (model.has_experts()) set_experts(report.config, model.moe);
  for (const char* axis : {"pp", "edp", "ep", "cp", "tp"}) report.mesh.emplace_back(axis, 1);
  return report;
}

void fill_report(Report& report, const Options& options, const GptConfig& model, const RunRecord& record,
                 const Verdict& verdict) {
  report.loss = record.losses();
  report.aux_loss = record.aux_losses();
  report.checks = verdict.checks();
  report.claims = verdict.claims();
  for (std::size_t c = 0; c < record.peak_bytes.size(); ++c) {
    const auto& [category, peak] = record.peak_bytes[c];
    if (peak > 0) report.memory.push_back({0, memory_category_name(category), record.current_bytes[c].second, peak});
  }
  const double ms = record.median_step_ms();
  report.timing["step_ms"] = ms;
  if (!record.steps.empty() && ms > 0) {
    report.timing["tokens_per_s"] = static_cast<double>(record.steps.front().tokens) / ms * 1e3;
    report.timing["labels_per_s"] = static_cast<double>(record.steps.front().valid_tokens) / ms * 1e3;
    report.timing["gflops"] = static_cast<double>(record.flops_per_step.total()) / ms / 1e6;
    if (options.peak_tflops) {
      double devices = 1;
      for (const auto& [axis, size] : report.mesh) devices *= static_cast<double>(size);
      report.timing["mfu"] =
          report.timing["tokens_per_s"] * model.flops_per_token(false) / (*options.peak_tflops * 1e12 * devices);
    }
  }
}

int finish(const Report& report, const Options& options) {
  if (!options.json.empty()) report.write_json(options.json);
  if (!options.quiet) {
    fmt::print("\n");
    report.print_tables(stdout);
  }
  std::size_t failed = 0;
  for (const Check& c : report.checks) failed += c.pass ? 0 : 1;
  for (const Claim& c : report.claims) failed += c.pass ? 0 : 1;
  const std::size_t total = report.checks.size() + report.claims.size();
  if (failed > 0) {
    for (const Check& c : report.checks) {
      if (!c.pass) {  // the first is enough for one line; the table lists all
        std::fputs(fmt::format("{}: check failed: {} ({}: {:.3g}, allowed {:.3g}); {} of {} checks and claims fail\n",
                               report.program, c.name, c.measure, c.value, c.tolerance, failed, total)
                       .c_str(),
                   stderr);
        return report.exit_status();
      }
    }
    for (const Claim& c : report.claims) {
      if (!c.pass) {
        std::fputs(fmt::format("{}: claim failed: {} (expected {:.10g}, measured {:.10g}); {} of {} checks and claims fail\n",
                               report.program, c.name, c.expected, c.measured, failed, total)
                       .c_str(),
                   stderr);
        break;
      }
    }
  } else if (!options.quiet && report.checks.empty()) {
    fmt::print("nothing was compared; all {} claims hold\n", report.claims.size());
  } else if (!options.quiet) {
    fmt::print("all {} checks and {} claims hold\n", report.checks.size(), report.claims.size());
  }
  if (!report.sample.empty()) fmt::print("\n{}", report.sample);
  return report.exit_status();
}

}  // namespace ref5d
