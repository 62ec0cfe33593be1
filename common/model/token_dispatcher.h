// How tokens get to their experts and back.
//
//                 x [R, H]        dispatch          rows by expert          combine         y [R, H]
//   forward       tokens  ----------------------->  experts compute  ------------------->   sum of w_j out_j
//   backward      dx      <-----------------------  their gradients  <-------------------   dy, and dw
//
// Each of the four ways is begun and, when its result is needed, finished: what is computed between the two calls runs while
// rows travel.
#pragma once

#include <memory>
#include <vector>

#include "common/model/router.h"

namespace ref5d {

// Rows for the experts that are here, one expert after the other.
struct ExpertRows {
  Tensor rows;                       // [n, H]
  std::vector<std::int64_t> counts;  // of each expert that is here; they sum to n
};

// One micro-batch's way through the experts of one layer, forward and backward. The calls come in this order, each begin_
// before its finish_.
class TokenTrip {
 public:
  virtual ~TokenTrip() = default;
  [[nodiscard]] virtual ExpertRows finish_dispatch(Context& ctx) = 0;
  // What the experts made of the rows [n, H].
  virtual void begin_combine(Context& ctx, const Tensor& outputs) = 0;
  // -> y [R, H]
  [[nodiscard]] virtual Tensor finish_combine(Context& ctx) = 0;
  virtual void begin_combine_backward(Context& ctx, const Tensor& dy) = 0;
  // -> the gradient of the outputs [n, H]
  [[nodiscard]] virtual Tensor finish_combine_backward(Context& ctx) = 0;
  // The gradient of the rows [n, H].
  virtual void begin_dispatch_backward(Context& ctx, const Tensor& drows) = 0;
  struct Gradients {
    Tensor dx;        // [R, H]
    Tensor dweights;  // [R, k], in the accumulator's dtype
  };
  [[nodiscard]] virtual Gradients finish_dispatch_backward(Context& ctx) = 0;
};

class TokenDispatcher {
 public:
  virtual ~TokenDispatcher() = default;
  // Begins to take the rows of x [R, H] to their experts.
  [[nodiscard]] virtual std::shared_ptr<TokenTrip> begin_dispatch(Context& ctx, const Tensor& x, const Routing& routing) = 0;
};

// Slots by expert (expert_rows.h).
struct SortedSlots {
  Tensor order;                      // int32 [n]; -1 where an expert's rows are padding
  Tensor place;                      // int32 [R, k]: where each slot is in it, -1 if nowhere
  std::vector<std::int64_t> counts;  // of each expert, with padding; they sum to n
  Tensor counts_on_device;           // int32 [E]; undefined with padding, which everyone knows
};
// With MoeConfig::pad_to_capacity every expert gets as many rows, its capacity or all that are here if these are fewer. Without
// it this waits for the stream: how many rows an expert has is known on the device alone, and decides what the host asks for.
[[nodiscard]] SortedSlots sort_by_expert(Context& ctx, const Tensor& chosen, const MoeConfig& moe);

// The way through experts that are all on this rank, begin .. begin + count - 1; the others are in nobody's choices.
[[nodiscard]] std::shared_ptr<TokenTrip> local_trip(Context& ctx, const Tensor& x, const Routing& routing, const MoeConfig& moe,
                                                    std::int64_t begin, std::int64_t count);

// All experts are here: nothing travels.
class LocalDispatcher : public TokenDispatcher {
 public:
  explicit LocalDispatcher(const MoeConfig& moe) : moe_(moe) {}
  [[nodiscard]] std::shared_ptr<TokenTrip> begin_dispatch(Context& ctx, const Tensor& x, const Routing& routing) override;

 private:
  MoeConfig moe_;
};

}  // namespace ref5d
