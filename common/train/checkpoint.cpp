#include "common/train/checkpoint.h"

#include <unistd.h>

#include <filesystem>

#include "common/device/error.h"
#include "common/io/file.h"
#include "common/io/json.h"
#include "common/io/safetensors.h"
#include "common/train/weights.h"

namespace ref5d {

namespace fs = std::filesystem;

namespace {

constexpr const char *kModel = "model.safetensors", *kOptimizer = "optimizer.safetensors", *kState = "state.json", *kLatest = "latest";

// A folder that is removed again unless it was renamed into place.
class TemporaryFolder {
 public:
  explicit TemporaryFolder(fs::path path) : path_(std::move(path)) {
    std::error_code error;
    fs::remove_all(path_, error);
    if (!fs::create_directories(path_, error)) {
      throw InputError("cannot make the folder " + path_.parent_path().string() + ": " + error.message() + "; give --save a folder that can be written");
    }
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    if (!path_.empty()) fs::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  void rename_to(const fs::path& target) {
    std::error_code error;
    fs::remove_all(target, error);  // the same step saved again
    fs::rename(path_, target, error);
    if (error) throw RunError("cannot rename " + path_.string() + " to " + target.string() + ": " + error.message());
    path_.clear();
  }
  [[nodiscard]] std::string file(const char* name) const { return (path_ / name).string(); }

 private:
  fs::path path_;
};

NamedTensors exact_weights(Trainer& trainer) {
  NamedTensors tensors;
  for (const Parameter* p : trainer.gpt().parameters()) tensors[p->name] = (p->master ? p->master : p->weight).to_host(trainer.stream());
  return tensors;
}

NamedTensors moments(Trainer& trainer) {
  NamedTensors tensors;
  for (const auto& s : trainer.optimizer().states()) {
    tensors["m/" + s.parameter->name] = s.m.to_host(trainer.stream());
    tensors["v/" + s.parameter->name] = s.v.to_host(trainer.stream());
  }
  return tensors;
}

fs::path newest_checkpoint(const std::string& dir) {
  if (fs::exists(fs::path(dir) / kState)) return dir;
  const fs::path latest = fs::path(dir) / kLatest;
  if (!fs::exists(latest)) throw InputError("--resume " + dir + " holds no checkpoint (no file '" + kLatest + "'); give the folder that --save was given");
  std::string name = read_file(latest.string());
  while (!name.empty() && name.back() == '\n') name.pop_back();
  const fs::path checkpoint = fs::path(dir) / name;
  if (!fs::exists(checkpoint / kState)) throw InputError("--resume " + dir + ": the checkpoint " + name + " that '" + kLatest + "' names is incomplete or gone");
  return checkpoint;
}

}  // namespace

void save(Trainer& trainer, const std::string& dir) {
  const std::string name = "step_" + std::to_string(trainer.steps_taken());
  TemporaryFolder folder(fs::path(dir) / (name + ".partial." + std::to_string(getpid())));
  write_safetensors(folder.file(kModel), exact_weights(trainer));
  write_safetensors(folder.file(kOptimizer), moments(trainer));
  Json state = Json::object({{"step", trainer.steps_taken()}, {"model", trainer.gpt().config().preset}});
  write_file(folder.file(kState), state.dump(2) + "\n");
  folder.rename_to(fs::path(dir) / name);
  write_file((fs::path(dir) / kLatest).string(), name + "\n");
}

void resume(Trainer& trainer, const std::string& dir) {
  const fs::path checkpoint = newest_checkpoint(dir);
  const std::string state_path = (checkpoint / kState).string();
  const Json state = Json::parse(read_file(state_path), state_path);
  load_weights(trainer.gpt(), (checkpoint / kModel).string(), trainer.stream());
  const SafetensorsFile moments((checkpoint / kOptimizer).string());
  for (const auto& s : trainer.optimizer().states()) {
    for (const auto& [prefix, tensor] : {std::pair{"m/", s.m}, {"v/", s.v}}) {
      const std::string name = prefix + s.parameter->name;
      if (!moments.contains(name)) throw InputError(moments.path() + " has no tensor " + name + "; the checkpoint is of another model");
      const HostTensor host = moments.read(name);
      if (host.shape != tensor.shape()) {
        throw InputError(moments.path() + ": " + name + " has shape " + to_string(host.shape) + ", but the model needs " + to_string(tensor.shape()));
      }
      tensor.copy_from(host, trainer.stream());
    }
  }
  trainer.optimizer().set_steps_taken(state.at("step").as_int());
}

}  // namespace ref5d
