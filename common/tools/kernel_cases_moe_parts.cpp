// Around the experts of a mixture: slots padded to a capacity, the bias that follows the load, choices by owner.
#include <fmt/format.h>

#include <algorithm>

#include "common/kernels/choice_owners.h"
#include "common/kernels/correction_bias.h"
#include "common/kernels/expert_padding.h"
#include "common/tools/kernel_inputs.h"

namespace ref5d {
namespace {

// Experts with fewer and with more slots than `rows`, and with none.
PreparedCase pad_slots_case(CaseInputs& in, std::int64_t experts, std::int64_t rows) {
  std::vector<double> counts;
  std::int64_t slots = 0;
  for (std::int64_t e = 0; e < experts; ++e) {
    const std::int64_t count = (e + 2) * rows / 2 % (2 * rows);
    counts.push_back(static_cast<double>(count));
    slots += count;
  }
  const Tensor of_experts = in.constants(counts, {experts}, Dtype::kInt32), order = in.integers({slots}, 0, slots);
  const Tensor padded = in.target({experts * rows});
  PreparedCase c;
  // No more slots than those that have a place.
  c.step("pad_slots", [=](Stream& s) { pad_slots(s, padded, order, of_experts, rows); }, {of_experts, padded}, {padded});
  c.exact_output("padded", padded);
  return c;
}

// A third of the experts has exactly the mean.
PreparedCase correction_bias_case(CaseInputs& in, std::int64_t experts) {
  std::vector<double> tokens;
  for (std::int64_t e = 0; e < experts; ++e) tokens.push_back(static_cast<double>(100 + e % 3));
  const Tensor bias = in.normal({experts}), counts = in.constants(tokens, {experts}, Dtype::kFp64);
  PreparedCase c;
  c.step("move_correction_bias", [=](Stream& s) { move_correction_bias(s, bias, counts, 0.001); }, {bias, counts}, {bias});
  c.exact_output("bias", bias);
  return c;
}

struct OwnedSize {
  std::int64_t rows, k, experts, owners;
  [[nodiscard]] std::string name() const { return fmt::format("{}x{}x{}x{}", rows, k, experts, owners); }
};

PreparedCase choice_owners_case(CaseInputs& in, const OwnedSize& z) {
  const Tensor chosen = in.integers({z.rows, z.k}, -1, z.experts), owner = in.integers({z.experts}, 0, z.owners);
  const Tensor owners = in.target({z.rows, z.owners}), mine = in.target({z.rows, z.k});
  PreparedCase c;
  c.step("owners_of_choices", [=](Stream& s) { owners_of_choices(s, owners, chosen, owner); }, {chosen, owner}, {owners});
  c.step("choices_of_range", [=](Stream& s) { choices_of_range(s, mine, chosen, z.experts / 4, z.experts / 2); }, {chosen},
         {mine});
  c.exact_output("owners", owners);
  c.exact_output("mine", mine);
  return c;
}

// As many copies as rows, of any rows for any owners.
PreparedCase take_choices_case(CaseInputs& in, const OwnedSize& z) {
  const Tensor chosen = in.integers({z.rows, z.k}, -1, z.experts), owner = in.integers({z.experts}, 0, z.owners);
  const Tensor weights = in.normal({z.rows, z.k}), order = in.integers({z.rows}, 0, z.rows * z.owners);
  const Tensor taken = in.target_in(Dtype::kInt32, {z.rows, z.k}), taken_weights = in.target({z.rows, z.k});
  const auto owners = static_cast<int>(z.owners);
  PreparedCase c;
  c.step("take_choices", [=](Stream& s) { take_choices(s, taken, taken_weights, chosen, weights, owner, order, owners); },
         {chosen, weights, owner, order}, {taken, taken_weights});
  c.exact_output("taken", taken);
  c.exact_output("taken_weights", taken_weights);
  return c;
}

}  // namespace

void add_moe_part_cases(CaseList& list, CaseSize size) {
  const bool large = size == CaseSize::kLarge;
  const auto add = [&](const std::string& name, std::initializer_list<Dtype> dtypes, const auto& prepare) {
    for (const Dtype dtype : dtypes) list.push_back({name, dtype, false, prepare});
  };
  const auto add_padding = [&](std::int64_t experts, std::int64_t rows) {
    add(fmt::format("pad_slots/{}x{}", experts, rows), {Dtype::kInt32},
        [=](CaseInputs& in) { return pad_slots_case(in, experts, rows); });
  };
  const auto add_bias = [&](std::int64_t experts) {
    add(fmt::format("correction_bias/{}", experts), {Dtype::kFp64, Dtype::kFp32},
        [=](CaseInputs& in) { return correction_bias_case(in, experts); });
  };
  const auto add_owners = [&](const OwnedSize& z) {
    add("choice_owners/" + z.name(), {Dtype::kInt32}, [=](CaseInputs& in) { return choice_owners_case(in, z); });
    add("take_choices/" + z.name(), {Dtype::kFp64, Dtype::kFp32}, [=](CaseInputs& in) { return take_choices_case(in, z); });
  };
  if (large) {
    add_padding(256, 512);
    add_bias(256);
    add_owners({16384, 8, 256, 8});
  } else {
    add_padding(5, 7);
    add_padding(3, 300);  // more rows than a block has threads
    add_bias(3);
    add_bias(300);  // several blocks
    add_owners({37, 2, 5, 1});
    add_owners({130, 3, 12, 4});
  }
}

}  // namespace ref5d
