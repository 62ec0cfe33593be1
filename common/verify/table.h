// Text tables for the terminal.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ref5d {

// Rows of cells in columns as wide as their widest cell. The first row is the heading. `align` has one letter per column:
// 'l' left or 'r' right. Every line ends in a newline and has no trailing blanks.
[[nodiscard]] std::string format_table(const std::vector<std::vector<std::string>>& rows, const std::string& align);

// "1.23e-04", "0".
[[nodiscard]] std::string scientific(double x);

// "1.50 MiB", "512 B": powers of 1024, three digits or so.
[[nodiscard]] std::string human_bytes(std::int64_t bytes);

// "1 234 567": digits in groups of three.
[[nodiscard]] std::string grouped_digits(std::int64_t n);

}  // namespace ref5d
