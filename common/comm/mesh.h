// The ranks as a mesh with named axes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/comm/communicator.h"

namespace ref5d {

// From slowest to fastest: tp neighbours are next to each other, so they share a node. dp is edp x ep.
inline constexpr std::array kAxes = {"pp", "edp", "ep", "cp", "tp"};

struct MeshSizes {
  std::int64_t pp = 1, edp = 1, ep = 1, cp = 1, tp = 1;
  [[nodiscard]] std::int64_t ranks() const { return pp * edp * ep * cp * tp; }
};

class Mesh {
 public:
  // The world's ranks `ranks`, this one among them, as many as the sizes' product. (Meshes on disjoint ranks can work side by
  // side; two on the same ranks cannot.) All ranks of the mesh build it, and its communicators, in the same order.
  // std::logic_error if `ranks` are another number or this rank is not among them.
  Mesh(const MeshSizes& sizes, const std::vector<int>& ranks);

  // The communicator along an axis ("tp", "dp") or a product ("dp*cp"), made when it is first asked for: the ranks that differ
  // from this one along those axes only, in the mesh's order. "world": all. One communicator for one set of axes, named as it
  // was asked for first. std::logic_error for a name that is no axis.
  // Beside the axes there is "mirror": the ranks r and P-1-r along pp, which DualPipe gives the same stages.
  [[nodiscard]] Communicator& operator[](const std::string& axes);
  // Two communicators that together make up an axis: `inner` neighbours, and the ranks with the same place among theirs. Named
  // "dp/inner" and "dp/outer", after the axis. inner divides the axis, or std::logic_error; an axis may be split in several
  // ways.
  [[nodiscard]] std::pair<Communicator*, Communicator*> split(const std::string& axes, int inner);

  // The ranks at places begin..end-1 along an axis, this one among them: named "tp[0-1]". Those that share a few of a tensor's
  // rows and not others. std::logic_error if the places are not on the axis, or this rank is not among them.
  [[nodiscard]] Communicator& subgroup(const std::string& axes, int begin, int end);
  // The ranks at two places along an axis, this one among them: "pp[0,3]".
  [[nodiscard]] Communicator& pair(const std::string& axis, int first, int second);

  // Says that ranks along pp which mirror each other hold the same weights, so that gradients are summed over them, too.
  void mirror_stages(bool mirrored) { mirrored_ = mirrored; }
  [[nodiscard]] bool mirrored() const { return mirrored_; }

  [[nodiscard]] std::int64_t size(const std::string& axis) const;
  // This rank's place along it.
  [[nodiscard]] std::int64_t coordinate(const std::string& axis) const;
  [[nodiscard]] const Group& everyone() const { return everyone_; }
  // Axis and size, slowest first, for reports.
  [[nodiscard]] std::vector<std::pair<std::string, std::int64_t>> sizes() const;

 private:
  [[nodiscard]] std::vector<int> ranks_along(unsigned axes) const;

  std::array<std::int64_t, kAxes.size()> sizes_{};
  std::array<std::int64_t, kAxes.size()> coordinates_{};
  Group everyone_;
  std::map<unsigned, std::unique_ptr<Communicator>> communicators_;  // by their axes, a bit for each
  std::map<std::string, std::unique_ptr<Communicator>> split_communicators_;
  std::map<std::pair<std::string, int>, std::size_t> splits_;  // axes and inner size -> index of the split
  bool mirrored_ = false;
};

}  // namespace ref5d
