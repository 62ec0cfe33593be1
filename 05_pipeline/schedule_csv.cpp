#include "05_pipeline/schedule_csv.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <optional>
#include <string_view>

#include "common/app/flag_value.h"
#include "common/device/error.h"
#include "common/io/file.h"

namespace ref5d::pipeline {

namespace {

constexpr std::string_view kOverlap = ")OVERLAP_F_B";

std::string_view without_blanks(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(" \t\r\"");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t\r\"") - begin + 1);
}

// Calls each(part) for what is between separators.
template <typename F>
void for_each_part(std::string_view text, char separator, F&& each) {
  for (;;) {
    const std::size_t end = text.find(separator);
    each(text.substr(0, end));
    if (end == std::string_view::npos) return;
    text.remove_prefix(end + 1);
  }
}

// Reads a number from the front of `text`, and removes it.
std::optional<int> take_number(std::string_view& text) {
  constexpr int kMost = 999'999;
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || number < 0 || number > kMost || text.front() == '-') return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return number;
}

std::optional<Operation> operation_in(std::string_view text) {
  const auto stage = take_number(text);
  if (!stage || text.empty() || std::string_view("FBIW").find(text.front()) == std::string_view::npos) return std::nullopt;
  const auto pass = static_cast<Pass>(text.front());
  text.remove_prefix(1);
  const auto micro_batch = take_number(text);
  if (!micro_batch || !text.empty()) return std::nullopt;
  return Operation{*stage, pass, *micro_batch};
}

std::optional<Cell> cell_in(std::string_view text) {
  if (text.front() != '(') {
    const auto operation = operation_in(text);
    return operation ? std::optional<Cell>({*operation, std::nullopt}) : std::nullopt;
  }
  if (!text.ends_with(kOverlap)) return std::nullopt;
  text.remove_prefix(1);
  text.remove_suffix(kOverlap.size());
  const std::size_t middle = text.find(';');
  if (middle == std::string_view::npos) return std::nullopt;
  const auto forward = operation_in(text.substr(0, middle)), backward = operation_in(text.substr(middle + 1));
  if (!forward || !backward || forward->pass != Pass::kForward || backward->pass != Pass::kBackward) return std::nullopt;
  return Cell{*forward, backward};
}

std::vector<Cell> parse_row(std::string_view line, std::size_t row, const std::string& source) {
  std::vector<Cell> cells;
  std::size_t column = 0;
  for_each_part(line, ',', [&](std::string_view part) {
    const std::string_view text = without_blanks(part);
    ++column;
    if (text.empty()) return;
    const auto cell = cell_in(text);
    if (!cell) {
      throw InputError(
          fmt::format("{}, row {}, cell {}: \"{}\" is no operation; write 2F0 (stage, F, B, I or W, micro-batch), "
                      "(2F4;5B1)OVERLAP_F_B, or nothing",
                      source, row, column, printable(text.substr(0, 40))));
    }
    cells.push_back(*cell);
  });
  return cells;
}

}  // namespace

std::string to_csv(const Schedule& schedule) {
  std::string csv;
  for (const std::vector<Cell>& row : schedule.ranks) {
    for (std::size_t c = 0; c < row.size(); ++c) csv += (c == 0 ? "" : ",") + to_text(row[c]);
    csv += '\n';
  }
  return csv;
}

Schedule parse_csv(const std::string& text, const std::string& source) {
  Schedule schedule;
  schedule.name = source;
  std::string_view lines = text;
  if (lines.ends_with('\n')) lines.remove_suffix(1);
  for_each_part(lines, '\n', [&](std::string_view line) {
    schedule.ranks.push_back(parse_row(line, schedule.ranks.size() + 1, source));
    if (schedule.ranks.back().empty()) {
      throw InputError(fmt::format("{}, row {}: it has no operation; each row is a rank, and every rank needs a stage", source,
                                   schedule.ranks.size()));
    }
    for (const Cell& cell : schedule.ranks.back()) {
      for_each_operation(cell, [&](const Operation& o) {
        schedule.stages = std::max(schedule.stages, o.stage + 1);
        schedule.micro_batches = std::max(schedule.micro_batches, o.micro_batch + 1);
      });
    }
  });
  return schedule;
}

Schedule read_csv(const std::string& path) {
  std::error_code error;
  if (std::filesystem::is_character_file(path, error))
    throw InputError(path + " is a device; give a file of comma-separated cells, a row for each rank");
  return parse_csv(read_file(path), path);
}

}  // namespace ref5d::pipeline
