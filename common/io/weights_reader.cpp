#include "common/io/weights_reader.h"

#include <fmt/core.h>

#include <filesystem>

#include "common/device/error.h"
#include "common/io/json.h"

namespace ref5d {
namespace {

constexpr const char* kSingleName = "model.safetensors";
constexpr const char* kIndexName = "model.safetensors.index.json";

// Throws InputError unless `weight_map` maps names to plain file names.
const Json& checked_weight_map(const Json& json, const std::string& index) {
  const Json* weight_map = json.find("weight_map");
  if (weight_map == nullptr || !weight_map->is_object()) {
    throw InputError(fmt::format("{} has no object weight_map (tensor name to file name)", index));
  }
  for (const auto& [name, file] : weight_map->members()) {
    if (!file.is_string() || file.as_string().empty() || file.as_string().find('/') != std::string::npos) {
      throw InputError(fmt::format("{}: weight_map must give tensor '{}' the name of a file in the same folder", index, name));
    }
  }
  return *weight_map;
}

}  // namespace

WeightsReader::WeightsReader(const std::string& path) : path_(path) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  if (!fs::is_directory(path, ignored)) {
    path.ends_with(".json") ? open_index(path) : open_single(path);
    return;
  }
  const fs::path folder = path;
  if (fs::exists(folder / kSingleName, ignored)) {
    open_single(folder / kSingleName);
  } else if (fs::exists(folder / kIndexName, ignored)) {
    open_index(folder / kIndexName);
  } else {
    const char* hint = fs::exists(folder / "latest", ignored) ? "; give one of the checkpoints in it, such as step_100" : "";
    throw InputError(fmt::format("folder {} holds neither {} nor {}{}", path, kSingleName, kIndexName, hint));
  }
}

void WeightsReader::open_single(const std::string& file) {
  shards_.emplace_back(file);
  for (const std::string& name : shards_.back().names()) shard_of_[name] = 0;
  metadata_ = shards_.back().metadata();
}

void WeightsReader::open_index(const std::string& index) {
  namespace fs = std::filesystem;
  const Json json = Json::parse(read_file(index), index);
  std::map<std::string, std::size_t> opened;
  for (const auto& [name, file] : checked_weight_map(json, index).members()) {
    const auto [position, is_new] = opened.emplace(file.as_string(), shards_.size());
    if (is_new) {
      const fs::path shard_path = fs::path(index).parent_path() / file.as_string();
      if (!fs::exists(shard_path))
        throw InputError(fmt::format("{}: the shard {} is missing; it must lie in the same folder", index, file.as_string()));
      shards_.emplace_back(shard_path.string());
      for (const auto& [key, value] : shards_.back().metadata()) metadata_.emplace(key, value);
    }
    if (!shards_[position->second].contains(name)) {
      throw InputError(
          fmt::format("{}: tensor '{}' is said to be in {}, which does not hold it", index, name, file.as_string()));
    }
    shard_of_[name] = position->second;
  }
}

std::vector<std::string> WeightsReader::names() const {
  std::vector<std::string> out;
  out.reserve(shard_of_.size());
  for (const auto& [name, shard] : shard_of_) out.push_back(name);
  return out;
}

const SafetensorsFile& WeightsReader::shard(const std::string& name) const {
  const auto found = shard_of_.find(name);
  if (found == shard_of_.end())
    throw InputError(fmt::format("{} holds no tensor '{}' among its {}", path_, name, shard_of_.size()));
  return shards_[found->second];
}

}  // namespace ref5d
