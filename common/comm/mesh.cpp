#include "common/comm/mesh.h"

#include <algorithm>
#include <sstream>
#include <stdexcept>

#include "common/comm/world.h"

namespace ref5d {

namespace {

// Tags: a bit for each axis, above them what part of a split axis it is, and of which split. Those of subgroups begin above the
// reserved ones.
constexpr int kInnerTag = 32, kOuterTag = 64, kSplitTags = 96, kPairTags = 1280, kMirrorTags = 1536, kSubgroupTags = 2048;
// In a set of axes: ranks that mirror each other along pp.
constexpr unsigned kMirror = 1U << kAxes.size();

unsigned axes_of(const std::string& names) {
  if (names == "world") return (1U << kAxes.size()) - 1;
  unsigned axes = 0;
  std::istringstream parts(names);
  for (std::string name; std::getline(parts, name, '*');) {
    if (name == "dp") {
      axes |= axes_of("edp") | axes_of("ep");
      continue;
    }
    if (name == "mirror") {
      axes |= kMirror;
      continue;
    }
    const auto found = std::find(kAxes.begin(), kAxes.end(), name);
    if (found == kAxes.end()) throw std::logic_error("no axis of the mesh is called " + names);
    axes |= 1U << static_cast<unsigned>(found - kAxes.begin());
  }
  return axes;
}

Group make_group(const std::vector<int>& ranks, int tag) {
  const auto me = std::find(ranks.begin(), ranks.end(), world().rank());
  return {ranks, static_cast<int>(me - ranks.begin()), tag};
}

}  // namespace

Mesh::Mesh(const MeshSizes& s, const std::vector<int>& ranks)
    : sizes_{s.pp, s.edp, s.ep, s.cp, s.tp}, everyone_(make_group(ranks, static_cast<int>(axes_of("world")))) {
  if (s.ranks() != everyone_.size()) {
    throw std::logic_error("a mesh of " + std::to_string(s.ranks()) + " ranks from " + std::to_string(everyone_.size()));
  }
  if (everyone_.rank == everyone_.size()) throw std::logic_error("a mesh is built by its own ranks");
  std::int64_t rest = everyone_.rank;
  for (std::size_t a = kAxes.size(); a-- > 0;) {
    coordinates_[a] = rest % sizes_[a];
    rest /= sizes_[a];
  }
}

// All places of the mesh, slowest axis first, that agree with this rank's outside of `axes`.
std::vector<int> Mesh::ranks_along(unsigned axes) const {
  std::vector<int> places{0};
  for (std::size_t a = 0; a < kAxes.size(); ++a) {
    std::vector<int> next;
    for (int place : places) {
      const bool along = (axes >> a & 1U) != 0;
      const std::int64_t own = coordinates_[a], mirror = a == 0 && (axes & kMirror) != 0 ? sizes_[a] - 1 - own : own;
      for (std::int64_t c = 0; c < sizes_[a]; ++c)
        if (along || c == own || c == mirror) next.push_back(static_cast<int>(place * sizes_[a] + c));
    }
    places = std::move(next);
  }
  for (int& place : places) place = everyone_.ranks[static_cast<std::size_t>(place)];
  return places;
}

Communicator& Mesh::operator[](const std::string& names) {
  const unsigned axes = axes_of(names);
  std::unique_ptr<Communicator>& c = communicators_[axes];
  if (!c) {
    const unsigned tag = (axes & kMirror) != 0 ? kMirrorTags + (axes & ~kMirror) : axes;
    c = std::make_unique<Communicator>(names, make_group(ranks_along(axes), static_cast<int>(tag)));
  }
  return *c;
}

Communicator& Mesh::pair(const std::string& names, int first, int second) {
  const unsigned axes = axes_of(names);
  const std::vector<int> all = ranks_along(axes);
  const int size = static_cast<int>(all.size());
  const std::string name = names + "[" + std::to_string(first) + "," + std::to_string(second) + "]";
  if (first < 0 || first >= second || second >= size)
    throw std::logic_error(name + " is no pair of the " + std::to_string(size) + " ranks along " + names);
  // One tag for all pairs, since two ranks are one pair.
  const Group group = make_group({all[static_cast<std::size_t>(first)], all[static_cast<std::size_t>(second)]},
                                 kPairTags + static_cast<int>(axes));
  if (group.rank == group.size()) throw std::logic_error("a rank outside of " + name + " asks for it");
  std::unique_ptr<Communicator>& c = split_communicators_[name];
  if (!c) c = std::make_unique<Communicator>(name, group);
  return *c;
}

std::pair<Communicator*, Communicator*> Mesh::split(const std::string& names, int inner) {
  const unsigned axes = axes_of(names);
  const std::vector<int> all = ranks_along(axes);
  const int size = static_cast<int>(all.size());
  if (inner < 1 || size % inner != 0)
    throw std::logic_error("groups of " + std::to_string(inner) + " from " + std::to_string(size) + " ranks of " + names);
  const int me = make_group(all, 0).rank;
  std::vector<int> near, far;
  for (int r = 0; r < size; ++r) {
    if (r / inner == me / inner) near.push_back(all[static_cast<std::size_t>(r)]);
    if (r % inner == me % inner) far.push_back(all[static_cast<std::size_t>(r)]);
  }
  // Several splits of a mesh may be in flight together, so their messages must differ.
  const auto number = static_cast<int>(splits_.try_emplace({names, inner}, splits_.size()).first->second);
  if ((number + 1) * kSplitTags >= static_cast<int>(ReservedTag::kHost)) throw std::logic_error("too many splits of a mesh");
  const auto make = [&](const char* part, const std::vector<int>& ranks, int tag) {
    std::unique_ptr<Communicator>& c = split_communicators_[names + part + std::to_string(number)];
    const int own_tag = static_cast<int>(axes) + tag + number * kSplitTags;
    if (!c) c = std::make_unique<Communicator>(names + part, make_group(ranks, own_tag));
    return c.get();
  };
  return {make("/inner", near, kInnerTag), make("/outer", far, kOuterTag)};
}

Communicator& Mesh::subgroup(const std::string& names, int begin, int end) {
  const unsigned axes = axes_of(names);
  const std::vector<int> all = ranks_along(axes);
  const int size = static_cast<int>(all.size()), me = make_group(all, 0).rank;
  if (begin < 0 || end > size || me < begin || me >= end)
    throw std::logic_error("places " + std::to_string(begin) + " to " + std::to_string(end - 1) + " of the " +
                           std::to_string(size) + " along " + names + ", from place " + std::to_string(me));
  const std::string name = names + "[" + std::to_string(begin) + "-" + std::to_string(end - 1) + "]";
  std::unique_ptr<Communicator>& c = split_communicators_[name];
  if (!c) {
    // No two subgroups have one tag, since two ranks may be in several together.
    const int tag = kSubgroupTags + (begin * (size + 1) + end) * (1 << kAxes.size()) + static_cast<int>(axes);
    c = std::make_unique<Communicator>(name, make_group({all.begin() + begin, all.begin() + end}, tag));
  }
  return *c;
}

std::int64_t Mesh::size(const std::string& axis) const {
  const unsigned axes = axes_of(axis);
  std::int64_t n = 1;
  for (std::size_t a = 0; a < kAxes.size(); ++a) n *= (axes >> a & 1U) != 0 ? sizes_[a] : 1;
  if ((axes & kMirror) != 0 && 2 * coordinates_[0] + 1 != sizes_[0]) n *= 2;
  return n;
}

std::int64_t Mesh::coordinate(const std::string& axis) const {
  const unsigned axes = axes_of(axis);
  std::int64_t at = 0;
  for (std::size_t a = 0; a < kAxes.size(); ++a)
    if ((axes >> a & 1U) != 0) at = at * sizes_[a] + coordinates_[a];
  return at;
}

std::vector<std::pair<std::string, std::int64_t>> Mesh::sizes() const {
  std::vector<std::pair<std::string, std::int64_t>> all;
  for (std::size_t a = 0; a < kAxes.size(); ++a) all.emplace_back(kAxes[a], sizes_[a]);
  return all;
}

}  // namespace ref5d
