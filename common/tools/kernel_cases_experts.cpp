// The rows of a mixture of experts: their order by expert, and their way there and back.
#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "common/device/device.h"
#include "common/kernels/expert_rows.h"
#include "common/tools/kernel_inputs.h"

namespace ref5d {
namespace {

struct RoutingSize {
  std::int64_t rows, k, experts;
  [[nodiscard]] std::int64_t slots() const { return rows * k; }
  [[nodiscard]] std::string name() const { return fmt::format("{}x{}x{}", rows, k, experts); }
};

// What the operations would make of a choice that is none here and there, made on the host. `routed` is the order with -1 for
// the slots of none.
struct Routing {
  Tensor chosen, order, routed, place;
};

Routing routing(CaseInputs& in, const RoutingSize& z) {
  Routing r;
  r.chosen = in.integers({z.rows, z.k}, -1, z.experts);
  const std::vector<double> chosen = r.chosen.to_doubles(device().compute());
  std::vector<double> order(chosen.size()), place(chosen.size(), -1);
  std::iota(order.begin(), order.end(), 0);
  const auto expert = [&](double slot) { return chosen[static_cast<std::size_t>(slot)]; };
  std::stable_sort(order.begin(), order.end(), [&](double a, double b) { return expert(a) < expert(b); });
  const auto some = std::find_if(order.begin(), order.end(), [&](double slot) { return expert(slot) >= 0; });
  std::rotate(order.begin(), some, order.end());
  std::vector<double> routed = order;
  for (std::size_t i = 0; i < order.size(); ++i) {
    const auto slot = static_cast<std::size_t>(order[i]);
    if (chosen[slot] < 0) {
      routed[i] = -1;
    } else {
      place[slot] = static_cast<double>(i);
    }
  }
  r.order = in.constants(order, {z.slots()}, Dtype::kInt32);
  r.routed = in.constants(routed, {z.slots()}, Dtype::kInt32);
  r.place = in.constants(place, {z.rows, z.k}, Dtype::kInt32);
  return r;
}

// An expert has room for half of the slots that it has on average.
PreparedCase slots_case(CaseInputs& in, const RoutingSize& z) {
  const Routing r = routing(in, z);
  const Tensor order = in.target({z.slots()}), counts = in.target({z.experts}), place = in.target({z.slots()});
  const Tensor kept = in.target({z.rows, z.k});
  const std::int64_t capacity = std::max<std::int64_t>(z.slots() / z.experts / 2, 1);
  PreparedCase c;
  c.step("sort_slots", [=](Stream& s) { sort_slots(s, order, counts, r.chosen); }, {r.chosen}, {order, counts});
  c.step("invert_order", [=](Stream& s) { invert_order(s, place, r.routed); }, {r.routed}, {place});
  c.step("drop_beyond_capacity", [=](Stream& s) { drop_beyond_capacity(s, kept, r.chosen, r.order, capacity); },
         {r.chosen, r.order}, {kept});
  c.exact_output("order", order);
  c.exact_output("counts", counts);
  c.exact_output("place", place);
  c.exact_output("kept", kept);
  return c;
}

PreparedCase expert_rows_case(CaseInputs& in, const RoutingSize& z, std::int64_t columns) {
  const Routing r = routing(in, z);
  const Shape by_row{z.rows, columns}, by_slot{z.slots(), columns}, by_choice{z.rows, z.k};
  const Tensor x = in.normal(by_row), rows = in.normal(by_slot), weights = in.normal_in(in.accumulator(), by_choice);
  const Tensor taken = in.target(by_slot), sum = in.target(by_row), weighted = in.target(by_row), drows = in.target(by_slot);
  const Tensor dweights = in.target_in(in.accumulator(), by_choice);
  const auto k = static_cast<int>(z.k);
  PreparedCase c;
  c.step("take_slots", [=](Stream& s) { take_slots(s, taken, x, r.routed, k); }, {x, r.routed}, {taken});
  c.step("sum_slots", [=](Stream& s) { sum_slots(s, sum, rows, r.place, Tensor()); }, {rows, r.place}, {sum});
  c.step("sum_slots_weighted", [=](Stream& s) { sum_slots(s, weighted, rows, r.place, weights); }, {rows, r.place, weights},
         {weighted});
  c.step("sum_slots_backward", [=](Stream& s) { sum_slots_backward(s, drows, x, r.routed, weights); }, {x, r.routed, weights},
         {drows});
  c.step("slot_weights_backward", [=](Stream& s) { slot_weights_backward(s, dweights, x, rows, r.place); }, {x, rows, r.place},
         {dweights});
  c.exact_output("taken", taken);
  c.output("sum", sum);
  c.output("weighted", weighted);
  c.output("drows", drows);
  c.output("dweights", dweights);
  return c;
}

}  // namespace

void add_expert_cases(CaseList& list, CaseSize size) {
  const bool large = size == CaseSize::kLarge;
  using Sizes = std::vector<RoutingSize>;
  // Several blocks of slots and of experts, of which some have none; two passes of the sort.
  for (const RoutingSize& z : large ? Sizes{{16384, 8, 256}} : Sizes{{37, 2, 5}, {233, 3, 300}})
    list.push_back({"slots/" + z.name(), Dtype::kInt32, false, [=](CaseInputs& in) { return slots_case(in, z); }});
  const auto add = [&](const RoutingSize& z, std::int64_t columns) {
    add_case(list, fmt::format("expert_rows/{}x{}", z.name(), columns),
             [=](CaseInputs& in) { return expert_rows_case(in, z, columns); });
  };
  if (large) {
    add({16384, 2, 8}, 1024);
  } else {
    add({37, 2, 5}, 33);
    add({5, 3, 4}, 300);  // more columns than a block has threads
  }
}

}  // namespace ref5d
