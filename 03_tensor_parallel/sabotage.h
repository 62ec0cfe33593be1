// The classic mistakes that this lesson can plant, each of which a check must notice.
#pragma once

#include <string>
#include <vector>

#include "03_tensor_parallel/axis.h"
#include "common/app/command_line.h"
#include "common/train/trainer.h"

namespace ref5d::tensor_parallel {

struct Sabotage {
  std::string name;
  std::string breaks;  // what goes wrong, and the row of the bug bank
  // Changes the options to what the mistake needs to show on so many ranks of the axis, where the user did not say otherwise.
  // InputError if it cannot show.
  void (*prepare)(Options&, const CommandLine&, int ranks);
  // Plants the mistake in the run under test; the baseline stays right. rank: of the tp axis.
  void (*plant)(TrainerOptions&, Faults&, int rank);
};

[[nodiscard]] const std::vector<Sabotage>& sabotages();
// Throws InputError, listing the names, if there is none called so.
[[nodiscard]] const Sabotage& find_sabotage(const std::string& name);

}  // namespace ref5d::tensor_parallel
