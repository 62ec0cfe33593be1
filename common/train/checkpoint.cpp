#include "common/train/checkpoint.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <limits>

#include "common/device/error.h"
#include "common/io/file.h"
#include "common/io/json.h"
#include "common/io/safetensors.h"
#include "common/train/weights.h"

namespace ref5d {

namespace fs = std::filesystem;

namespace {

constexpr const char *kModel = "model.safetensors", *kOptimizer = "optimizer.safetensors", *kState = "state.json",
                     *kLatest = "latest", *kPartial = ".partial.";

// A folder that is removed again unless keep() is called.
class TemporaryFolder {
 public:
  explicit TemporaryFolder(fs::path path) : path_(std::move(path)) {
    std::error_code error;
    made_parent_ = !fs::exists(path_.parent_path(), error);
    fs::remove_all(path_, error);
    if (!fs::create_directories(path_, error)) {
      throw InputError("cannot make the folder " + path_.parent_path().string() + ": " + error.message() +
                       "; give --save a folder that can be written");
    }
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    if (path_.empty()) return;
    fs::remove_all(path_, ignored);
    if (made_parent_) fs::remove(path_.parent_path(), ignored);  // unless something else is in it
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  void rename_to(const fs::path& target) {
    std::error_code error;
    fs::rename(path_, target, error);
    if (error) throw RunError("cannot rename " + path_.string() + " to " + target.string() + ": " + error.message());
    path_ = target;
  }
  void keep() { path_.clear(); }
  [[nodiscard]] std::string file(const char* name) const { return (path_ / name).string(); }

 private:
  fs::path path_;
  bool made_parent_ = false;
};

NamedTensors moments(Trainer& trainer) {
  NamedTensors tensors;
  for (const auto& s : trainer.optimizer().states()) {
    tensors["m/" + s.parameter->name] = trainer.global(*s.parameter, s.m);
    tensors["v/" + s.parameter->name] = trainer.global(*s.parameter, s.v);
  }
  return tensors;
}

// The folder that `latest` names, or "" where there is none.
std::string latest_name(const fs::path& dir) {
  const fs::path latest = dir / kLatest;
  std::error_code error;
  if (!fs::exists(latest, error)) return "";
  std::string name = read_file(latest.string());
  while (!name.empty() && name.back() == '\n') name.pop_back();
  if (name.empty() || name.find('/') != std::string::npos || name == "." || name == "..") {
    throw InputError(latest.string() + " must hold the name of a checkpoint beside it, such as step_100");
  }
  return name;
}

fs::path newest_checkpoint(const std::string& dir) {
  std::error_code error;
  if (fs::exists(fs::path(dir) / kState, error)) return dir;
  const std::string name = latest_name(dir);
  if (name.empty())
    throw InputError("--resume " + dir + " holds no checkpoint (no file '" + kLatest +
                     "'); give the folder that --save was given");
  const fs::path checkpoint = fs::path(dir) / name;
  if (!fs::exists(checkpoint / kState, error)) {
    throw InputError("--resume " + dir + ": the checkpoint " + name + " that '" + kLatest + "' names is incomplete or gone");
  }
  return checkpoint;
}

// A name that no folder has yet: step_8, or step_8.1 where the same step was saved before. The earlier one stays until `latest`
// names its successor, since no file system can replace a folder that is not empty at one stroke.
std::string unused_name(const fs::path& dir, const std::string& step) {
  std::string name = step;
  std::error_code error;
  for (int i = 1; fs::exists(dir / name, error); ++i) name = step + "." + std::to_string(i);
  return name;
}

// Held while a checkpoint gets its name and its predecessor goes: processes that save into one folder take turns. Goes with the
// process, and leaves no file. (A file system without locks has none.)
class FolderLock {
 public:
  explicit FolderLock(const fs::path& dir) : fd_(open(dir.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
    if (fd_ >= 0) (void)flock(fd_, LOCK_EX);
  }
  ~FolderLock() {
    if (fd_ >= 0) close(fd_);
  }
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  int fd_;
};

// Takes away what a newer checkpoint of the same step has replaced: folders that hold a checkpoint, and nothing of others.
void remove_replaced(const fs::path& dir, const std::string& step, const std::string& newest) {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(dir, error)) {
    const std::string name = entry.path().filename().string();
    const bool same_step = name == step || (name.starts_with(step + ".") &&
                                            name.find_first_not_of("0123456789", step.size() + 1) == std::string::npos);
    if (same_step && name != newest && fs::exists(entry.path() / kState, error)) fs::remove_all(entry.path(), error);
  }
}

// Takes away what processes that were killed while they saved have left.
void remove_abandoned(const fs::path& dir) {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(dir, error)) {
    const std::string name = entry.path().filename().string();
    const std::size_t at = name.rfind(kPartial);
    if (!name.starts_with("step_") || at == std::string::npos) continue;
    const int pid = std::atoi(name.c_str() + at + std::string_view(kPartial).size());
    if (pid > 0 && kill(pid, 0) != 0 && errno == ESRCH) fs::remove_all(entry.path(), error);
  }
}

// What the weights' names and shapes do not tell of a model.
Json unseen_shape(const GptConfig& c) {
  Json shape = Json::object({{"heads", c.heads},
                             {"kv_heads", c.kv_heads},
                             {"norm_eps", c.norm_eps},
                             {"rope_theta", c.position == PositionKind::kRope ? c.rope_theta : 0}});
  if (!c.has_experts()) return shape;
  shape["top_k"] = c.moe.top_k;
  shape["score"] = kind_name(c.moe.score);
  shape["renormalise"] = c.moe.renormalise;
  shape["routed_scale"] = c.moe.routed_scale;
  shape["groups"] = c.moe.groups;
  shape["top_groups"] = c.moe.top_groups;
  return shape;
}

void expect_same(const Json* then, const char* key, const Json& now, const std::string& state_path, const char* flags) {
  if (then == nullptr || then->dump() == now.dump()) return;
  throw InputError(state_path + " is of a run with " + key + " " + then->dump() + ", not " + now.dump() +
                   "; resume with the same " + flags);
}

// The samples and the dropout masks of the steps to come follow from the seed and the batch: with others the run would not
// continue, but be another.
void check_same_batches(const Json& state, const std::string& state_path, const Trainer& trainer) {
  constexpr const char* kFlags = "--seed and the same micro-batch x grad-accum x data-parallel ranks";
  const TrainerOptions& options = trainer.options();
  const Json* data = state.find("data");
  if (data != nullptr && !(*data == Json(trainer.data().fingerprint())))
    throw InputError(state_path + " is of a run on other data; resume with the same --data, --documents and --seq");
  expect_same(state.find("seed"), "seed", options.storage.seed, state_path, kFlags);
  expect_same(state.find("global_batch"), "global_batch", options.global_batch, state_path, kFlags);
}

void check_same_model(const Json& state, const std::string& state_path, const GptConfig& model) {
  const Json* then = state.find("shape");
  const Json now = unseen_shape(model);
  for (const auto& [key, value] : now.members())
    expect_same(then == nullptr ? nullptr : then->find(key), key.c_str(), value, state_path, "--model and its fields");
}

std::int64_t read_step(const Json& state, const std::string& state_path) {
  const Json* step = state.find("step");
  if (step == nullptr || !step->is_int() || step->as_int() < 0 || step->as_int() > std::numeric_limits<std::int32_t>::max()) {
    throw InputError(state_path + ": \"step\" must be the number of steps taken, a whole number from 0 to 2147483647");
  }
  return step->as_int();
}

}  // namespace

void save(Trainer& trainer, const std::string& dir, bool writes) {
  if (!writes) {
    (void)trainer.global_weights();
    (void)moments(trainer);
    return;
  }
  const std::string step = "step_" + std::to_string(trainer.steps_taken());
  TemporaryFolder folder(fs::path(dir) / (step + kPartial + std::to_string(getpid())));
  write_safetensors(folder.file(kModel), trainer.global_weights());
  write_safetensors(folder.file(kOptimizer), moments(trainer));
  const Json state = Json::object({{"step", trainer.steps_taken()},
                                   {"model", trainer.gpt().config().preset},
                                   {"shape", unseen_shape(trainer.gpt().config())},
                                   {"data", trainer.data().fingerprint()},
                                   {"seed", trainer.options().storage.seed},
                                   {"global_batch", trainer.options().global_batch}});
  write_file(folder.file(kState), state.dump(2) + "\n");
  const FolderLock lock(dir);
  const std::string name = unused_name(dir, step);
  folder.rename_to(fs::path(dir) / name);
  write_file((fs::path(dir) / kLatest).string(), name + "\n");  // syncs the folder, the rename included
  folder.keep();
  remove_replaced(dir, step, name);
  remove_abandoned(dir);
}

std::int64_t steps_taken_at(const std::string& dir) {
  const std::string state_path = (newest_checkpoint(dir) / kState).string();
  return read_step(Json::parse(read_file(state_path), state_path), state_path);
}

void resume(Trainer& trainer, const std::string& dir) {
  const fs::path checkpoint = newest_checkpoint(dir);
  const std::string state_path = (checkpoint / kState).string();
  const Json state = Json::parse(read_file(state_path), state_path);
  const std::int64_t step = read_step(state, state_path);
  check_same_batches(state, state_path, trainer);
  load_weights(trainer.gpt(), (checkpoint / kModel).string(), trainer.stream(), UntiedHead::kOwn);
  check_same_model(state, state_path, trainer.gpt().config());
  const SafetensorsFile moments((checkpoint / kOptimizer).string());
  for (const auto& s : trainer.optimizer().states()) {
    for (const auto& [prefix, tensor] : {std::pair{"m/", s.m}, {"v/", s.v}}) {
      const std::string name = prefix + s.parameter->name;
      if (!moments.contains(name))
        throw InputError(moments.path() + " has no tensor " + name + "; the checkpoint is of another model");
      const HostTensor host = moments.read(name);
      if (host.shape != s.parameter->global_shape) {
        throw InputError(moments.path() + ": " + name + " has shape " + to_string(host.shape) + ", but the model needs " +
                         to_string(s.parameter->global_shape));
      }
      if (!host.all_finite())
        throw InputError(moments.path() + ": " + name + " has an infinity or a NaN; resume from a checkpoint that has none");
      const std::vector<double> values = prefix[0] == 'v' ? host.to_doubles() : std::vector<double>();
      if (std::any_of(values.begin(), values.end(), [](double x) { return x < 0; }))
        throw InputError(moments.path() + ": " + name + " has a negative number; second moments are means of squares");
      load_part(*s.parameter, tensor, host, trainer.stream());
    }
  }
  trainer.optimizer().set_steps_taken(step);
}

}  // namespace ref5d
