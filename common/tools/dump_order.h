// The order in which the tensors of a dump are computed: what comes first can be the cause of what comes later.
#pragma once

#include <compare>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace ref5d {

// The parts of a dump, in the order in which they are listed.
enum class DumpSection { kForward, kBackward, kFinal, kInitial, kOther };

// Where a tensor belongs: compare as a whole.
struct DumpPlace {
  DumpSection section = DumpSection::kOther;
  std::int64_t layer = 0;     // counted in the direction of the section
  std::int64_t position = 0;  // within the layer
  std::int64_t expert = 0;
  std::string name;                                    // among equals
  auto operator<=>(const DumpPlace&) const = default;  // NOLINT(modernize-use-nullptr): meant for the hidden 0
};

// Forward: the sublayers sub/L/attn_norm, q, k, v, attn, o_proj, mlp_norm, mlp_in, ..., mlp_out of each layer with hidden/L at
// its place, then logits, loss, aux_loss. Backward, from the last layer to the first: grad/NAME and sub_grad/L/..., each as
// backward reaches it, then grad_norm. Then final/NAME, init/NAME and others.
class DumpOrder {
 public:
  // `names`: all tensors of the dump. hidden/L is taken as the output of layer L, or, where there is one hidden state more than
  // layers, as its input (hidden/0 is the embedding).
  explicit DumpOrder(std::span<const std::string> names);
  [[nodiscard]] DumpPlace place(std::string_view name) const;

 private:
  bool hidden_is_input_ = false;
};

// The names sorted by their place.
[[nodiscard]] std::vector<std::string> sort_by_depth(std::vector<std::string> names);

}  // namespace ref5d
