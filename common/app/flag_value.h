// Reading the values of flags, with one-line errors that say what would be right.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace ref5d {

struct IntegerRange {
  std::int64_t min = std::numeric_limits<std::int64_t>::min();
  std::int64_t max = std::numeric_limits<std::int64_t>::max();
};

// Finite numbers between min and max; an open end is itself excluded.
struct NumberRange {
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
  bool open_min = false;
  bool open_max = false;
};

// The value of `text`, given to `flag`. InputError if it is not a whole number (digits with an optional minus, nothing else) or
// is out of range: "--layers 0: must be a whole number of at least 1".
[[nodiscard]] std::int64_t parse_integer(std::string_view flag, std::string_view text, const IntegerRange& range);

// The same for a finite decimal number such as "0.1" or "3e-4".
[[nodiscard]] double parse_number(std::string_view flag, std::string_view text, const NumberRange& range);

// `text` if it is one of the choices. InputError that lists them otherwise, with the nearest one where it looks like a slip.
[[nodiscard]] std::string parse_choice(std::string_view flag, std::string_view text, std::span<const std::string> choices);

// The candidate nearest to `text` by edits (insert, delete, replace, swap neighbours), or the only one that begins with it;
// empty if none is near enough to have been meant.
[[nodiscard]] std::string nearest(std::string_view text, std::span<const std::string> candidates);

// "a, b, c".
[[nodiscard]] std::string join(std::span<const std::string> texts, std::string_view separator);

// `text` on one line and not too long, for messages: control characters become '?'.
[[nodiscard]] std::string printable(std::string_view text);

}  // namespace ref5d
