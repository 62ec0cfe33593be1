// The experts that tokens chose, so that another run can use the same. In low precision a token whose scores nearly tie may
// choose other experts by rounding alone, and from there on the runs are not the same computation: so comparisons replay the
// choices of the run that they compare with.
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
  // By layer and sample; -1 for tokens of which nothing is known.
  std::map<std::pair<std::int64_t, std::int64_t>, std::vector<std::int32_t>> chosen;

  // Adds what the other knows. Returns how many choices both know and do not know alike; these stay.
  std::int64_t merge(const Routes& other);

  // How many choices of `truth` are others here, or not known.
  [[nodiscard]] std::int64_t differences(const Routes& truth) const;

  // Between hosts.
  [[nodiscard]] std::vector<std::byte> to_bytes() const;
  [[nodiscard]] static Routes from_bytes(const std::vector<std::byte>& bytes);
};

// Waits for the device three times a layer, to see choices and their tokens on the host: runs that are compared are not runs to
// take times of.
class RouteLog {
 public:
  // kKeep: tokens use what is known of them; of the others their own choices are kept. kReplay: the others are an error.
  enum class Mode { kKeep, kReplay };
  // `routes` must outlive this.
  RouteLog(Routes& routes, Mode mode) : routes_(routes), mode_(mode) {}
  // The choices [R, k] that these rows are to use, of which the router would choose `own`. InputError under kReplay for a token
  // of which none are known.
  [[nodiscard]] Tensor pass(const Context& ctx, const ResidualRows& rows, std::int64_t layer, const Tensor& own);

 private:
  Routes& routes_;
  Mode mode_;
};

}  // namespace ref5d
