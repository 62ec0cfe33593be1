// Weights in one safetensors file or in several with an index.
#pragma once

#include "common/io/safetensors.h"

namespace ref5d {

// Weights from one .safetensors file, from a folder that holds model.safetensors or model.safetensors.index.json with its
// shards, or from such an index itself. Same interface and errors as SafetensorsFile; a missing shard is named.
class WeightsReader {
 public:
  explicit WeightsReader(const std::string& path);

  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] std::vector<std::string> names() const;  // sorted
  [[nodiscard]] bool contains(const std::string& name) const { return shard_of_.contains(name); }
  [[nodiscard]] const TensorInfo& info(const std::string& name) const { return shard(name).info(name); }
  [[nodiscard]] const Metadata& metadata() const { return metadata_; }  // of all shards; the first shard wins
  [[nodiscard]] HostTensor read(const std::string& name) const { return shard(name).read(name); }
  [[nodiscard]] HostTensor read_range(const std::string& name, std::int64_t first, std::int64_t count) const {
    return shard(name).read_range(name, first, count);
  }

 private:
  [[nodiscard]] const SafetensorsFile& shard(const std::string& name) const;
  void open_single(const std::string& file);
  void open_index(const std::string& index);

  std::string path_;
  std::vector<SafetensorsFile> shards_;
  std::map<std::string, std::size_t> shard_of_;
  Metadata metadata_;
};

}  // namespace ref5d
