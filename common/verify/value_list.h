// Key and value pairs of mixed type, in the order in which they were added: the configuration in reports.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace ref5d {

using Value = std::variant<bool, std::int64_t, double, std::string>;
using ValueList = std::vector<std::pair<std::string, Value>>;

// Replaces the value of `key`, or appends it.
inline void set_value(ValueList& list, std::string key, Value value) {
  for (auto& [existing, old] : list) {
    if (existing == key) {
      old = std::move(value);
      return;
    }
  }
  list.emplace_back(std::move(key), std::move(value));
}

}  // namespace ref5d
