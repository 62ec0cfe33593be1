// What the lessons' sabotages share: settings in which a mistake shows, unless the user chose others.
#pragma once

#include <string>
#include <vector>

#include "common/app/command_line.h"
#include "common/device/error.h"

namespace ref5d {

// Sets an option unless the user gave its flag.
template <typename T>
void prefer(const CommandLine& line, const char* flag, T& option, const T& value) {
  if (!line.given(flag)) option = value;
}

// A mistake that cannot show is not run, since it would look like one that nothing notices: InputError unless it `shows`.
inline void need(const Options& o, bool shows, const std::string& what) {
  if (!shows) throw InputError("--sabotage " + o.sabotage + " does nothing without " + what);
}

// The one called so among a lesson's. InputError, listing the names, if there is none.
template <typename Sabotage>
[[nodiscard]] const Sabotage& find_by_name(const std::vector<Sabotage>& all, const std::string& name) {
  std::string known;
  for (const Sabotage& s : all) {
    if (s.name == name) return s;
    known += (known.empty() ? "" : ", ") + s.name;
  }
  throw InputError("--sabotage " + name + " is not known; use one of: " + known);
}

}  // namespace ref5d
