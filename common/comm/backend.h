// Which library communicates.
#pragma once

#include <string>
#include <vector>

#include "common/comm/group.h"

namespace ref5d {

// "auto", "mpi" or "nccl" (--comm), for all communicators built from now on; every rank calls it. auto takes NCCL where every
// rank has a GPU of its own, else MPI. Returns a line that says what was taken and why, or "" where there was no choice.
// InputError where NCCL is asked for and cannot be had: two ranks on one GPU would hang it (pitfall P58).
[[nodiscard]] std::string choose_backend(const std::string& name);

// What to take on GPUs with these UUIDs, one for each rank, if `name` is asked for.
struct Backend {
  bool nccl;
  std::string why;  // the line
};
[[nodiscard]] Backend backend_for(const std::string& name, const std::vector<Bytes>& gpus);

}  // namespace ref5d
