// What a layer keeps of one micro-batch for its backward.
#pragma once

#include <cstdint>
#include <memory>

#include "common/app/options.h"
#include "common/model/gpt.h"

namespace ref5d::tensor_parallel {

// Bytes that one layer keeps, by whether the axis cuts them.
struct LayerActivations {
  std::int64_t whole = 0, cut = 0;
  [[nodiscard]] std::int64_t total() const { return whole + cut; }
};
// The closed form, for T tokens on a rank of so many. Under --recompute as well.
[[nodiscard]] LayerActivations layer_activations(const Options& options, const GptConfig& model, std::int64_t tokens, int ranks,
                                                 int rank);

// Reads the memory ledger after each layer's first forward: what has been added since the layer before it.
class ActivationMeter : public UnitHooks {
 public:
  explicit ActivationMeter(std::int64_t layers) : layers_(layers) {}
  void after_forward(std::int64_t unit) override;
  // Of a layer; all layers keep the same, or it is -1.
  [[nodiscard]] std::int64_t bytes_per_layer() const { return bytes_; }

 private:
  std::int64_t layers_, before_ = 0, bytes_ = 0;
  bool done_ = false;
};

}  // namespace ref5d::tensor_parallel
