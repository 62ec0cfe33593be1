#include "05_pipeline/drawing.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "common/device/error.h"

namespace ref5d::pipeline {

namespace {

// How a stage is told from the rank's others.
enum class StageMark {
  kNone,       // it has no other
  kLowerCase,  // two: the second's letters are small
  kNumber,     // more: the stage's number first, as in the CSV
};

struct Style {
  StageMark mark = StageMark::kNone;
  std::size_t unit = 0;  // characters for a unit of time
  bool colours = false;
};

StageMark mark_for(const Assignment& assignment, int ranks) {
  std::size_t most = 0;
  for (int r = 0; r < ranks; ++r) most = std::max(most, assignment.stages_of(r).size());
  return most <= 1 ? StageMark::kNone : most == 2 ? StageMark::kLowerCase : StageMark::kNumber;
}

std::size_t digits(int count) { return std::to_string(count - 1).size(); }

// A letter and a number, and a blank between two of them.
std::size_t unit_for(const Schedule& schedule, StageMark mark) {
  return 2 + digits(schedule.micro_batches) + (mark == StageMark::kNumber ? digits(schedule.stages) : 0);
}

const char* colour_of(Pass pass) {
  switch (pass) {
    case Pass::kForward: return "\x1b[44;97m";   // blue
    case Pass::kBackward: return "\x1b[42;30m";  // green
    case Pass::kInput: return "\x1b[46;30m";     // cyan
    case Pass::kWeight: return "\x1b[43;30m";    // yellow
  }
  return "";
}

std::string label(const Operation& o, const std::vector<int>& rank_stages, StageMark mark) {
  if (mark == StageMark::kNumber) return to_text(o);
  char letter = static_cast<char>(o.pass);
  if (mark == StageMark::kLowerCase && o.stage != rank_stages.front()) letter = static_cast<char>(letter - 'A' + 'a');
  return fmt::format("{}{}", letter, o.micro_batch);
}

// `width` characters, of which the last is blank; what lasts longer than its label has a line, or its colour, behind it.
std::string paint(std::string text, Pass pass, std::size_t width, bool colours) {
  text.resize(std::max(text.size(), width - 1), colours ? ' ' : '-');
  const std::string gap(width > text.size() ? width - text.size() : 0, ' ');
  return colours ? colour_of(pass) + text + "\x1b[0m" + gap : text + gap;
}

std::string paint_cell(const Cell& cell, const std::vector<int>& rank_stages, std::size_t width, const Style& style) {
  const std::string first = label(cell.operation, rank_stages, style.mark);
  if (!cell.beside) return paint(first, cell.operation.pass, width, style.colours);
  const std::string second = label(*cell.beside, rank_stages, style.mark);
  if (!style.colours) return paint(first + "&" + second, cell.operation.pass, width, false);
  const std::size_t left = width / 3;
  return paint(first, cell.operation.pass, left, true) + paint(second, cell.beside->pass, width - left, true);
}

std::size_t columns_of(double time, const Style& style) { return static_cast<std::size_t>(std::lround(time)) * style.unit; }

// A dot for each unit of time.
std::string idle(double time, const Style& style) {
  std::string unit(style.unit, ' ');
  unit[0] = '.';
  std::string text;
  for (long i = 0; i < std::lround(time); ++i) text += unit;
  return text;
}

std::string draw_row(const std::vector<Cell>& row, const std::vector<Interval>& times, double makespan,
                     const std::vector<int>& rank_stages, const Style& style) {
  std::string text;
  double now = 0;
  for (std::size_t c = 0; c < row.size(); ++c) {
    text += idle(times[c].begin - now, style);
    text += paint_cell(row[c], rank_stages, columns_of(times[c].end - times[c].begin, style), style);
    now = times[c].end;
  }
  return text + idle(makespan - now, style);
}

// Of the passes that occur.
std::string legend(const Schedule& schedule, const Style& style) {
  struct Entry {
    Pass pass;
    const char* meaning;
    bool occurs = false;
  };
  Entry entries[] = {{Pass::kForward, "F forward"},
                     {Pass::kBackward, "B backward"},
                     {Pass::kInput, "I input gradient"},
                     {Pass::kWeight, "W weight gradient"}};
  bool overlap = false;
  for (const std::vector<Cell>& row : schedule.ranks) {
    for (const Cell& cell : row) {
      overlap = overlap || cell.beside.has_value();
      for_each_operation(cell, [&](const Operation& o) {
        for (Entry& e : entries) e.occurs = e.occurs || e.pass == o.pass;
      });
    }
  }
  std::string text;
  for (const Entry& e : entries) {
    if (e.occurs) text += (style.colours ? colour_of(e.pass) + std::string(e.meaning) + "\x1b[0m" : e.meaning) + ", ";
  }
  if (overlap) text += "F&B both in turns, ";
  text += "and the micro-batch";
  if (style.mark == StageMark::kLowerCase) text += "; small letters: the rank's second stage";
  if (style.mark == StageMark::kNumber) text += ", after the stage";
  return text + "; . idle";
}

}  // namespace

std::string draw(const Schedule& schedule, bool colours) {
  const Assignment assignment(schedule);
  const Simulation run = simulate(schedule, uniform_costs(1, 1, 1));
  Style style;
  style.mark = mark_for(assignment, schedule.rank_count());
  style.unit = unit_for(schedule, style.mark);
  style.colours = colours;

  constexpr double kMostCharacters = 1e7;
  const double characters = run.makespan * static_cast<double>(style.unit) * schedule.rank_count();
  if (characters > kMostCharacters)
    throw InputError(
        fmt::format("a drawing of {} ranks and {:.0f} units of time has {:.0f} million characters; use --print-schedule csv",
                    schedule.rank_count(), run.makespan, characters / 1e6));
  std::string text;
  const std::size_t name_width = digits(schedule.rank_count());
  for (int r = 0; r < schedule.rank_count(); ++r) {
    const auto i = static_cast<std::size_t>(r);
    text += fmt::format("rank {:>{}} |", r, name_width);
    text += draw_row(schedule.ranks[i], run.ranks[i], run.makespan, assignment.stages_of(r), style) + "|\n";
  }
  return text + fmt::format("time {:.0f}, own {:.0f}, idle {:.1f}% | {}\n", run.makespan, run.cost(), 100 * run.bubble_rate(),
                            legend(schedule, style));
}

}  // namespace ref5d::pipeline
