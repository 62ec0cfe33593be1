// The experts that tokens chose, so that another run can use the same. In low precision a token whose scores nearly tie may choose
// other experts by rounding alone, and from there on the runs are not the same computation: so comparisons replay the choices
// of the run that they compare with.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "common/model/context.h"

namespace ref5d {

// For each layer and global sample: int32 [S, k].
struct Routes {
  std::int64_t seq = 0, top_k = 0;
  std::map<std::pair<std::int64_t, std::int64_t>, std::vector<std::int32_t>> chosen;  // by layer and sample

  // Between hosts.
  [[nodiscard]] std::vector<std::byte> to_bytes() const;
  [[nodiscard]] static Routes from_bytes(const std::vector<std::byte>& bytes);
};

class RouteLog {
 public:
  enum class Mode { kRecord, kReplay, kReplayWhereKnown };
  // `routes` must outlive this.
  RouteLog(Routes& routes, Mode mode) : routes_(routes), mode_(mode) {}
  // The choices [R, k] that these rows are to use: `own`, which are kept, or those that were kept. For a token that
  // has none InputError, or its own.
  [[nodiscard]] Tensor pass(const Context& ctx, const ResidualRows& rows, std::int64_t layer, const Tensor& own);

 private:
  Routes& routes_;
  Mode mode_;
};

}  // namespace ref5d
