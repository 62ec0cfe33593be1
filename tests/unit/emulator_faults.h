// Classic mistakes in CUDA code, each with its correct twin, for the emulator to find.
#pragma once

#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "common/device/emu/fault.h"

namespace ref5d::testing {

struct PlantedFault {
  std::string name;
  emu::Fault expected;
  std::string message;  // part of what the report must say
  // Runs the mistake or its twin, whose results it checks.
  std::function<void(bool faulty)> run;
  // Under how many of the 20 seeds at least: all, since what is wrong in some order is decided, not waited for, ...
  int seeds = 20;
  // ... unless the order decides as what it shows.
  emu::Fault otherwise = emu::Fault::kNone;
};
inline std::ostream& operator<<(std::ostream& out, const PlantedFault& f) { return out << f.name; }

// Between the threads of a block, and of its warps.
[[nodiscard]] std::vector<PlantedFault> faults_between_threads();
// In the use of memory.
[[nodiscard]] std::vector<PlantedFault> faults_of_memory();
// Between blocks, streams, and the host.
[[nodiscard]] std::vector<PlantedFault> faults_between_streams();

}  // namespace ref5d::testing
