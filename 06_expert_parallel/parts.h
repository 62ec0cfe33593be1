// Which part of the model each rank of a mesh has: what lesson 02's formulas of memory and traffic are given.
#pragma once

#include <vector>

#include "02_ddp_zero/claims.h"
#include "06_expert_parallel/claims.h"
#include "06_expert_parallel/run.h"

namespace ref5d::expert_parallel {

// Places along the mesh's axes, slowest first.
struct Place {
  int pp, edp, ep, cp, tp;
};

class Parts {
 public:
  Parts(const Layout& layout, const LayoutPlan& plan, Mesh& mesh, const data_parallel::StrategyOptions& strategy);
  // That of the ranks at this place along pp, ep and tp.
  [[nodiscard]] data_parallel::Layout of(const Place& place) const;
  // Adds lesson 02's claims for all ranks.
  void claim_costs(Report& report) const;

 private:
  [[nodiscard]] Place place_of(int rank) const;

  const Layout& layout_;
  const LayoutPlan& plan_;
  data_parallel::StrategyOptions strategy_;
  data_parallel::RanksOf ordinary_, experts_;
  bool copies_;  // of stages, which DualPipe's mirrored ranks hold
};

}  // namespace ref5d::expert_parallel
