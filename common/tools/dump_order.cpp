#include "common/tools/dump_order.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>
#include <optional>
#include <utility>

namespace ref5d {
namespace {

constexpr std::int64_t kAfterLayers = 1'000'000'000;  // the place of the final norm and the head
constexpr std::int64_t kBeforeLayers = -1;            // the place of the embeddings
constexpr std::int64_t kInsideMlp = 85;               // sublayers without a place of their own: router, experts, ...

using Position = std::pair<std::string_view, std::int64_t>;

// Forward positions of the sublayers, on one scale with the parameters below: a parameter comes just before what it makes.
constexpr std::array<Position, 16> kSublayers{{{"attn_norm", 11},
                                               {"q", 22},
                                               {"k", 32},
                                               {"v", 42},
                                               {"attn", 50},
                                               {"o_proj", 61},
                                               {"mlp_norm", 71},
                                               {"mlp_in", 72},
                                               {"router", 76},
                                               {"router_logits", 76},
                                               {"router_scores", 77},
                                               {"router_probs", 77},
                                               {"experts", 78},
                                               {"chosen_experts", 78},
                                               {"expert_weights", 79},
                                               {"mlp_out", 95}}};

// Forward positions of a layer's parameters by a part of their names; the first that fits counts.
constexpr std::array<Position, 23> kParameters{{{"input_layernorm", 10},
                                                {"ln_1", 10},
                                                {"q_proj", 20},
                                                {"q_norm", 21},
                                                {"k_proj", 30},
                                                {"k_norm", 31},
                                                {"v_proj", 41},
                                                {"c_attn", 20},
                                                {"qkv_proj", 20},
                                                {"o_proj", 60},
                                                {"attn.c_proj", 60},
                                                {"post_attention_layernorm", 70},
                                                {"ln_2", 70},
                                                {"mlp.gate.", 75},
                                                {"moe.gate.", 75},
                                                {".w1.", 80},
                                                {"gate_proj", 80},
                                                {".w3.", 81},
                                                {"up_proj", 81},
                                                {"c_fc", 80},
                                                {".w2.", 82},
                                                {"down_proj", 82},
                                                {"mlp.c_proj", 82}}};

std::optional<std::int64_t> number(std::string_view text) {
  std::int64_t value = 0;
  const auto result = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || result.ec != std::errc() || result.ptr != text.data() + text.size()) return std::nullopt;
  return value;
}

// The number that follows `before` in a dotted name: number_after("model.layers.12.mlp", "layers.") is 12.
std::optional<std::int64_t> number_after(std::string_view name, std::string_view before) {
  const std::size_t at = name.find(before);
  if (at == std::string_view::npos || (at > 0 && name[at - 1] != '.')) return std::nullopt;
  const std::size_t start = at + before.size();
  return number(name.substr(start, std::min(name.find('.', start), name.size()) - start));
}

std::optional<std::int64_t> layer_of_parameter(std::string_view name) {
  const auto layer = number_after(name, "layers.");
  return layer ? layer : number_after(name, "h.");
}

// Text after `prefix`, if the name begins with it.
std::optional<std::string_view> after(std::string_view name, std::string_view prefix) {
  if (!name.starts_with(prefix)) return std::nullopt;
  return name.substr(prefix.size());
}

struct Sublayer {
  std::int64_t layer;
  std::string_view what;
};

std::optional<Sublayer> sublayer(std::string_view name, std::string_view prefix) {
  const auto rest = after(name, prefix);
  if (!rest) return std::nullopt;
  const std::size_t slash = rest->find('/');
  if (slash == std::string_view::npos) return std::nullopt;
  const auto layer = number(rest->substr(0, slash));
  if (!layer) return std::nullopt;
  return Sublayer{*layer, rest->substr(slash + 1)};
}

std::int64_t sublayer_position(std::string_view what) {
  for (const auto& [name, position] : kSublayers) {
    if (what == name) return position;
  }
  return kInsideMlp;
}

// Where a parameter enters the forward pass.
DumpPlace parameter_place(DumpSection section, std::string_view name) {
  DumpPlace place{section, kBeforeLayers, 0, number_after(name, "experts.").value_or(0), std::string(name)};
  if (const auto layer = layer_of_parameter(name)) {
    place.layer = *layer;
    place.position = kInsideMlp;
    for (const auto& [part, position] : kParameters) {
      if (name.find(part) == std::string_view::npos) continue;
      place.position = position;
      break;
    }
  } else if (name.find("lm_head") != std::string_view::npos) {
    place.layer = kAfterLayers;
    place.position = 1;
  } else if (name.find("norm") != std::string_view::npos || name.find("ln_f") != std::string_view::npos) {
    place.layer = kAfterLayers;
  }
  return place;
}

// Backward visits layers, positions and experts in the opposite order.
DumpPlace reversed(DumpPlace place) {
  place.layer = -place.layer;
  place.position = -place.position;
  place.expert = -place.expert;
  return place;
}

}  // namespace

DumpOrder::DumpOrder(std::span<const std::string> names) {
  std::int64_t layers = 0, hidden = 0;
  for (const std::string& name : names) {
    for (const char* prefix : {"sub/", "sub_grad/"}) {
      if (const auto s = sublayer(name, prefix)) layers = std::max(layers, s->layer + 1);
    }
    for (const char* prefix : {"grad/", "final/", "init/"}) {
      const auto parameter = after(name, prefix);
      const auto layer = parameter ? layer_of_parameter(*parameter) : std::nullopt;
      if (layer) layers = std::max(layers, *layer + 1);
    }
    const auto index = after(name, "hidden/");
    if (index && number(*index)) hidden = std::max(hidden, *number(*index) + 1);
  }
  hidden_is_input_ = layers > 0 && hidden > layers;
}

DumpPlace DumpOrder::place(std::string_view name) const {
  const std::string full(name);
  if (const auto rest = after(name, "hidden/")) {
    const auto layer = number(*rest);
    if (layer) return {DumpSection::kForward, *layer, hidden_is_input_ ? 0 : 99, 0, full};
    return {DumpSection::kForward, kBeforeLayers, 0, 0, full};  // hidden/embedding
  }
  if (const auto s = sublayer(name, "sub/")) return {DumpSection::kForward, s->layer, sublayer_position(s->what), 0, full};
  if (name == "logits") return {DumpSection::kForward, kAfterLayers, 2, 0, full};
  if (name == "loss") return {DumpSection::kForward, kAfterLayers, 3, 0, full};
  if (name == "aux_loss") return {DumpSection::kForward, kAfterLayers, 4, 0, full};
  if (const auto s = sublayer(name, "sub_grad/")) {
    return reversed({DumpSection::kBackward, s->layer, sublayer_position(s->what), 0, full});
  }
  DumpPlace place{DumpSection::kOther, 0, 0, 0, full};
  if (name == "grad_norm") {
    place.section = DumpSection::kBackward;
    place.layer = std::numeric_limits<std::int64_t>::max();
  } else if (const auto gradient = after(name, "grad/")) {
    place = reversed(parameter_place(DumpSection::kBackward, *gradient));
  } else if (const auto final_weight = after(name, "final/")) {
    place = parameter_place(DumpSection::kFinal, *final_weight);
  } else if (const auto weight = after(name, "init/")) {
    place = parameter_place(DumpSection::kInitial, *weight);
  }
  place.name = full;
  return place;
}

std::vector<std::string> sort_by_depth(std::vector<std::string> names) {
  const DumpOrder order(names);
  std::vector<DumpPlace> places;
  for (const std::string& name : names) places.push_back(order.place(name));
  std::sort(places.begin(), places.end());
  std::vector<std::string> sorted;
  for (DumpPlace& place : places) sorted.push_back(std::move(place.name));
  return sorted;
}

}  // namespace ref5d
