// Gradients of which several ranks of the axis have a share each: of kv heads that more than one rank holds, since each has
// only its own query heads' part; and of the norms over q and k, which all heads use.
//
// Each head's contribution to such a gradient is a term of a sum, and every head is on one rank: so the gradient is the sum
// over the ranks that hold the parameter, and over no others. It is formed once a step, when the rank's own sum over
// micro-batches is final, and before data parallelism reduces it. (Strategies that shard gradients want it after each
// micro-batch.) The ranks add in one order, so that all end with the same bits. They add in fp32 or fp64, and the sum has the
// gradient's dtype: bf16 where a strategy shards bf16 gradients and does not fuse their accumulation, as it would have on one
// device, where the heads' terms are added in one product.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "03_tensor_parallel/axis.h"
#include "common/model/gpt.h"

namespace ref5d::tensor_parallel {

// What of a parameter is shared: rows begin..end-1 of its local part, and which ranks of the axis hold them.
struct SharedPart {
  std::int64_t begin, end;
  Range holders;
};

// From now on the gradient of p is summed over the holders of each part.
void sum_gradient_over_holders(Parameter& p, const std::vector<SharedPart>& parts, std::shared_ptr<Axis> axis);

// All of a model's, whose heads are cut already.
void sum_shared_gradients(Gpt& gpt, const std::shared_ptr<Axis>& axis);

}  // namespace ref5d::tensor_parallel
