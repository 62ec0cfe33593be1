#include "02_ddp_zero/flat_group.h"

#include <algorithm>
#include <set>
#include <stdexcept>

#include "common/kernels/random.h"

namespace ref5d::data_parallel {

void FlatGroup::append(Parameter& p) {
  members.push_back({&p, numel});
  numel += p.local_numel();
}

std::size_t FlatGroup::used() const {
  return static_cast<std::size_t>(
      std::count_if(members.begin(), members.end(), [](const Member& m) { return m.parameter->uses > 0; }));
}

std::int64_t FlatGroup::own_numel(int rank) const {
  return std::clamp<std::int64_t>(numel - rank * shard_numel(), 0, shard_numel());
}

FlatRange FlatGroup::range(const Member& m, int rank) const {
  const std::int64_t shard_begin = rank * shard_numel(), shard_end = shard_begin + shard_numel();
  const std::int64_t begin = std::clamp(shard_begin, m.begin, m.end()), end = std::clamp(shard_end, m.begin, m.end());
  return {begin - m.begin, end - m.begin};
}

Tensor FlatGroup::whole_of(const Tensor& flat, const Member& m) {
  return flat.rows(m.begin, m.end()).view(m.parameter->local_shape());
}

Tensor FlatGroup::shard_of(const Tensor& flat, int rank) const {
  return flat.rows(rank * shard_numel(), (rank + 1) * shard_numel());
}

Tensor FlatGroup::part_of(const Tensor& shard, const Member& m, int rank) const {
  const FlatRange r = range(m, rank);
  if (r.size() == 0) return shard.rows(0, 0);
  const std::int64_t begin = m.begin + r.begin - rank * shard_numel();
  return shard.rows(begin, begin + r.size());
}

Tensor allocate_flat(std::int64_t elements, std::int64_t used, double padding, Dtype dtype, MemoryCategory category,
                     Stream& stream) {
  Tensor flat = Tensor::zeros({elements}, dtype, category, stream);
  if (padding != 0 && used < elements) fill_constant(stream, flat.rows(used, elements), padding);
  return flat;
}

FlatGroups::Place FlatGroups::find(const Parameter& p) const {
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    for (const FlatGroup::Member& m : groups_[g].members)
      if (m.parameter == &p) return {g, m};
  }
  throw std::logic_error(p.name + " is in no group");
}

void FlatGroups::cut(ByKind rank) const {
  for (const FlatGroup& group : groups_) {
    for (const FlatGroup::Member& m : group.members) {
      const FlatRange r = group.range(m, rank.of(group.expert));
      m.parameter->placement.flat_begin = r.begin;
      m.parameter->placement.flat_end = r.end;
    }
  }
}

std::int64_t FlatGroups::numel() const {
  std::int64_t n = 0;
  for (const FlatGroup& g : groups_) n += g.numel;
  return n;
}

std::int64_t FlatGroups::padded_numel() const {
  std::int64_t n = 0;
  for (const FlatGroup& g : groups_) n += g.padded_numel();
  return n;
}

FlatGroups make_buckets(const Gpt& gpt, double capacity_bytes, std::size_t element_bytes, ByKind ranks) {
  std::vector<Parameter*> backward = gpt.parameters();
  std::reverse(backward.begin(), backward.end());
  std::vector<FlatGroup> buckets;
  for (Parameter* p : backward) {
    const bool expert = p->expert;
    auto open = std::find_if(buckets.rbegin(), buckets.rend(), [&](const FlatGroup& b) { return b.expert == expert; });
    bool next =
        open == buckets.rend() || static_cast<double>(open->numel) * static_cast<double>(element_bytes) >= capacity_bytes;
    // What another ep rank has of the experts opens none, or these ranks would have their buckets in different orders.
    if (expert && open != buckets.rend() && p->local_numel() == 0) next = false;
    if (next) buckets.push_back({.members = {}, .numel = 0, .ranks = ranks.of(expert), .expert = expert});
    (next ? buckets.back() : *open).append(*p);
  }
  return FlatGroups(std::move(buckets));
}

FlatGroups make_units(const Gpt& gpt, bool whole_model, ByKind ranks) {
  std::vector<FlatGroup> units;
  std::set<const Parameter*> taken;
  for (std::int64_t unit = 0; unit < gpt.unit_count(); ++unit) {
    for (const bool expert : {false, true})
      if (unit == 0 || !whole_model) units.push_back({.members = {}, .numel = 0, .ranks = ranks.of(expert), .expert = expert});
    for (const auto& p : gpt.parameters_of(unit))
      if (!p->across_stages && taken.insert(p.get()).second) units[units.size() - (p->expert ? 1 : 2)].append(*p);
  }
  std::erase_if(units, [](const FlatGroup& group) { return group.members.empty(); });
  for (Parameter* p : gpt.parameters()) {
    if (!p->across_stages) continue;
    units.push_back({.members = {}, .numel = 0, .ranks = ranks.ordinary});
    units.back().append(*p);
  }
  return FlatGroups(std::move(units));
}

std::vector<std::vector<std::size_t>> groups_of_units(const Gpt& gpt, const FlatGroups& groups) {
  std::vector<std::vector<std::size_t>> all;
  for (std::int64_t unit = 0; unit < gpt.unit_count(); ++unit) {
    std::set<std::size_t> used;
    if (gpt.has(unit))
      for (const auto& p : gpt.parameters_of(unit)) used.insert(groups.find(*p).group);
    all.emplace_back(used.begin(), used.end());
  }
  return all;
}

}  // namespace ref5d::data_parallel
