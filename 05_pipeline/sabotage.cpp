#include "05_pipeline/sabotage.h"

#include <algorithm>
#include <map>
#include <set>

#include "05_pipeline/costs.h"
#include "common/app/sabotage.h"
#include "common/app/settings.h"

namespace ref5d::pipeline {

namespace {

void few_steps(Options& o, Lesson&, const CommandLine& line) {
  prefer(o, line, "--steps", o.steps, std::int64_t{3});
  need(o, o.init_std.value_or(1) >= 1e-3, "weights of some size; leave --init-std out");
}

std::shared_ptr<const Plan> plan_of(const Options& o, const Lesson& lesson) {
  return make_plan(make_schedule(lesson.schedule), model_config(o).layers, lesson.pipeline.stage_layers);
}

void with_messages(Options& o, Lesson& lesson, const CommandLine& line) {
  few_steps(o, lesson, line);
  need(o, crossings(plan_of(o, lesson)->schedule) > 0, "messages; leave --schedule-file out");
}

void with_schedule(Options& o, Lesson& lesson, const CommandLine& line, const char* name) {
  need(o, lesson.schedule.file.empty(), std::string("--schedule ") + name + "; leave --schedule-file out");
  prefer(o, line, "--schedule", lesson.schedule.name, std::string(name));
  need(o, lesson.schedule.name == name, std::string("--schedule ") + name + "; leave --schedule out");
}

void with_tied(Options& o, Lesson& lesson, const CommandLine& line) {
  few_steps(o, lesson, line);
  if (!model_config(o).tied) prefer(o, line, "--tied", o.tied, true);
  need(o, model_config(o).tied, "a tied embedding; leave --no-tied out");
  need(o, plan_of(o, lesson)->ends_apart(),
       "an embedding and a head on different ranks; leave --schedule and --schedule-file out");
}

void with_halves(Options& o, Lesson& lesson, const CommandLine& line) {
  few_steps(o, lesson, line);
  with_schedule(o, lesson, line, "zb-h1");
  need(o, lesson.stage.strategy.kind == "ddp", "gradients that every rank has whole; leave --strategy out");
}

// Between two ranks go activations of one stage and gradients of another, and not in the order in which they are needed: on two
// ranks, which are each other's neighbours on both sides, with several chunks; on more, in a V.
void with_overtaking(Options& o, Lesson& lesson, const CommandLine& line) {
  few_steps(o, lesson, line);
  const bool two = lesson.schedule.ranks == 2;
  if (lesson.schedule.file.empty())
    prefer(o, line, "--schedule", lesson.schedule.name, std::string(two ? "interleaved" : "zb-v"));
  if (two && lesson.schedule.name == "interleaved") prefer(o, line, "--micro-batches", lesson.schedule.micro_batches, 5);
  const std::int64_t stages = 2 * lesson.schedule.ranks;
  if (model_config(o).layers + 2 < stages) prefer(o, line, "--layers", o.layers, stages);
  const auto plan = plan_of(o, lesson);
  const auto planted = with_receives_by_need(*plan);
  const auto same = [](const Exchange& a, const Exchange& b) { return a.receives == b.receives; };
  bool differs = false;
  for (std::size_t r = 0; r < plan->exchanges.size(); ++r)
    differs = differs || !std::equal(plan->exchanges[r].begin(), plan->exchanges[r].end(), planted->exchanges[r].begin(), same);
  need(o, differs, "messages that overtake each other; leave --schedule, --micro-batches and --chunks out");
}

// Whether the first steps' micro-batches have different numbers of labels.
bool has_uneven_labels(const Options& o, const Lesson& lesson) {
  const Dataset data(dataset_options(o, model_config(o)));
  const std::int64_t micro_batches = o.grad_accum * lesson.schedule.micro_batches;
  for (std::int64_t step = 0; step < o.steps; ++step) {
    const GlobalBatch batch = global_batch(data, step, o.micro_batch * micro_batches);
    std::set<std::int64_t> counts;
    for (std::int64_t m = 0; m < micro_batches; ++m) {
      std::int64_t labels = 0;
      for (const Row& row : rows_of_micro_batch(batch, o.micro_batch, m)) labels += count_valid_labels(row);
      counts.insert(labels);
    }
    if (counts.size() > 1) return true;
  }
  return false;
}

void with_uneven_labels(Options& o, Lesson& lesson, const CommandLine& line) {
  few_steps(o, lesson, line);
  prefer(o, line, "--documents", o.documents, std::string("pad"));
  // Few short rows have padding, and the seed chooses the rows.
  Options other = o;
  while (!has_uneven_labels(other, lesson) && other.seed < o.seed + 100) ++other.seed;
  need(o, has_uneven_labels(other, lesson) && (other.seed == o.seed || !line.given("--seed")),
       "micro-batches with different numbers of labels; leave --documents, --micro-batches, --seq, --seed and --data out");
  prefer(o, line, "--seed", o.seed, other.seed);
}

void with_clipping(Options& o, Lesson& lesson, const CommandLine& line) {
  few_steps(o, lesson, line);
  need(o, o.clip > 0, "clipping; leave --clip out");
}

void with_copies(Options& o, Lesson& lesson, const CommandLine& line) {
  few_steps(o, lesson, line);
  with_schedule(o, lesson, line, "dualpipe");
}

}  // namespace

const std::vector<Sabotage>& sabotages() {
  static const auto* const kAll = new std::vector<Sabotage>{
      {"early-reuse", "a buffer is used again before the message in it has left (P39)", 1, with_messages,
       [](Lesson& l) { l.pipeline.links.reuse_before_sent = true; }},
      {"weights-after-reduction", "the last W of each stage runs when gradients have been reduced (P41)", 2, with_halves,
       [](Lesson& l) { l.pipeline.faults.weights_after_reduction = true; }},
      {"tied-unsummed", "the two ends of a tied embedding do not add their gradients", 1, with_tied,
       [](Lesson& l) { l.pipeline.faults.tied_unsummed = true; }},
      {"tied-counts-twice", "both copies of a tied embedding count in the gradient norm (P18)", 1, with_tied,
       [](Lesson& l) { l.pipeline.faults.tied_counts_twice = true; }},
      {"swapped-messages", "a rank receives in the order of its needs, its peer sends in the order of its work (P37)", 1,
       with_overtaking, [](Lesson& l) { l.pipeline.faults.receives_by_need = true; }},
      {"mean-per-micro-batch", "each micro-batch's loss is divided by its own labels, not by the batch's (P05)", 1,
       with_uneven_labels, [](Lesson& l) { l.pipeline.faults.mean_per_micro_batch = true; }},
      {"own-norm", "each stage clips by the norm of its own gradients (T2)", 1, with_clipping,
       [](Lesson& l) { l.pipeline.faults.own_norm = true; }},
      {"copies-unsummed", "the two ranks that have the same stages do not add their gradients (P46)", 1, with_copies,
       [](Lesson& l) { l.pipeline.faults.copies_unsummed = true; }},
  };
  return *kAll;
}

const Sabotage& find_sabotage(const std::string& name) { return find_by_name(sabotages(), name); }

namespace {

// Of every operation, the number of its cell in its rank's row.
std::map<Operation, std::size_t> cell_numbers(const Schedule& schedule) {
  std::map<Operation, std::size_t> numbers;
  for (const std::vector<Cell>& row : schedule.ranks) {
    std::size_t number = 0;
    for (const Cell& cell : row) {
      for_each_operation(cell, [&](const Operation& o) { numbers[o] = number; });
      ++number;
    }
  }
  return numbers;
}

std::size_t cell_that_needs(const Message& m, const std::map<Operation, std::size_t>& cells) {
  Operation o = m.made_by;
  if (o.pass == Pass::kForward) return cells.at({o.stage + 1, Pass::kForward, o.micro_batch});
  const auto whole = cells.find({o.stage - 1, Pass::kBackward, o.micro_batch});
  return whole != cells.end() ? whole->second : cells.at({o.stage - 1, Pass::kInput, o.micro_batch});
}

}  // namespace

std::shared_ptr<const Plan> with_receives_by_need(const Plan& plan) {
  auto planted = std::make_shared<Plan>(plan);
  const std::map<Operation, std::size_t> cells = cell_numbers(plan.schedule);
  for (std::vector<Exchange>& row : planted->exchanges) {
    std::map<int, std::vector<Message*>> by_peer;
    for (Exchange& e : row)
      for (Message& m : e.receives) by_peer[m.from].push_back(&m);
    for (auto& [peer, received] : by_peer) {
      std::vector<Message> needed;
      for (const Message* m : received) needed.push_back(*m);
      std::stable_sort(needed.begin(), needed.end(), [&](const Message& a, const Message& b) {
        return cell_that_needs(a, cells) < cell_that_needs(b, cells);
      });
      for (std::size_t i = 0; i < needed.size(); ++i) *received[i] = needed[i];
    }
  }
  return planted;
}

}  // namespace ref5d::pipeline
