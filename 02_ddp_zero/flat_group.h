// Parameters that travel together.
//
//   a group of three parameters over four ranks:
//
//     elements   | embedding      | norm | up_proj            |pad|
//     shards     |    rank 0   |    rank 1   |    rank 2   |    rank 3   |
//
// One flat array instead of many small ones: a collective's fixed cost is paid once, and the shards are equal whatever the
// sizes of the parameters. A shard may begin and end inside a parameter, hold several, or (at the end) nothing but padding.
#pragma once

#include <cstdint>
#include <vector>

#include "common/model/gpt.h"

namespace ref5d::data_parallel {

// A number for each kind of parameters, of which a group holds one alone: ordinary ones, and experts that are on several ranks
// (Parameter::expert), whose state fewer ranks share.
struct ByKind {
  int ordinary, experts;
  ByKind(int both) : ordinary(both), experts(both) {}
  ByKind(int ordinary_, int experts_) : ordinary(ordinary_), experts(experts_) {}
  [[nodiscard]] int of(bool expert) const { return expert ? experts : ordinary; }
};

struct FlatGroup {
  struct Member {
    Parameter* parameter;
    std::int64_t begin;  // of its first element in the flat array
    [[nodiscard]] std::int64_t end() const { return begin + parameter->local_numel(); }
  };
  std::vector<Member> members;
  std::int64_t numel = 0;  // of all members
  int ranks = 1;           // that the array is cut over
  bool expert = false;     // what all members are

  void append(Parameter& p);
  // Members that get gradients here: all, but for those of other pipeline stages.
  [[nodiscard]] std::size_t used() const;
  // Every rank's share, equal: the last shards may be padded.
  [[nodiscard]] std::int64_t shard_numel() const { return (numel + ranks - 1) / ranks; }
  [[nodiscard]] std::int64_t padded_numel() const { return shard_numel() * ranks; }
  // What of a rank's shard is no padding.
  [[nodiscard]] std::int64_t own_numel(int rank) const;
  // Which elements of the member are in the rank's shard.
  [[nodiscard]] FlatRange range(const Member& m, int rank) const;

  // The member's tensor as a part of a flat array of the whole group, in its own shape.
  [[nodiscard]] static Tensor whole_of(const Tensor& flat, const Member& m);
  // The rank's shard of a flat array of the whole group.
  [[nodiscard]] Tensor shard_of(const Tensor& flat, int rank) const;
  // What a rank's shard has of the member, one-dimensional, perhaps empty.
  [[nodiscard]] Tensor part_of(const Tensor& shard, const Member& m, int rank) const;
};

// A flat array of `elements`, of which those from `used` on are padding and hold `padding`. Nothing may depend on its value.
[[nodiscard]] Tensor allocate_flat(std::int64_t elements, std::int64_t used, double padding, Dtype dtype,
                                   MemoryCategory category, Stream& stream);

// The groups of a model, and where each parameter is.
class FlatGroups {
 public:
  FlatGroups() = default;
  explicit FlatGroups(std::vector<FlatGroup> groups) : groups_(std::move(groups)) {}

  [[nodiscard]] std::size_t size() const { return groups_.size(); }
  [[nodiscard]] const FlatGroup& operator[](std::size_t g) const { return groups_[g]; }
  [[nodiscard]] auto begin() const { return groups_.begin(); }
  [[nodiscard]] auto end() const { return groups_.end(); }
  struct Place {
    std::size_t group;
    FlatGroup::Member member;
  };
  // std::logic_error if it is in none.
  [[nodiscard]] Place find(const Parameter& p) const;
  // Every parameter's placement gets the range that this rank keeps: its place among the ranks of a kind.
  void cut(ByKind rank) const;
  [[nodiscard]] std::int64_t numel() const;
  [[nodiscard]] std::int64_t padded_numel() const;

 private:
  std::vector<FlatGroup> groups_;
};

// Buckets in the order in which gradients become final, backward's, by their first members. One of each kind is open at a time.
// A bucket is closed once it holds `capacity` bytes, so that all but the last of a kind have at least as many; a parameter is
// never divided.
[[nodiscard]] FlatGroups make_buckets(const Gpt& gpt, double capacity_bytes, std::size_t element_bytes, ByKind ranks);
// A group for each of the model's units (embedding, blocks, head), or one for the whole model, and after it another one for its
// experts. A weight that two units use is in the first's; if they are different pipeline stages, in a group of its own, the
// last.
[[nodiscard]] FlatGroups make_units(const Gpt& gpt, bool whole_model, ByKind ranks);
// The groups that each unit of the model uses; none for units of other pipeline stages.
[[nodiscard]] std::vector<std::vector<std::size_t>> groups_of_units(const Gpt& gpt, const FlatGroups& groups);

}  // namespace ref5d::data_parallel
