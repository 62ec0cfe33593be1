// The start and the end of a program of several ranks.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "common/app/options.h"
#include "common/comm/mesh.h"
#include "common/comm/world.h"
#include "common/io/trace.h"
#include "common/verify/report.h"

namespace ref5d {

// run_program for a world of ranks, which share their machine's cores and have the same flags, or it is InputError. The exit
// status is rank 0's on all of them. A failure
// that all ranks meet, such as a wrong flag, is reported once; one that some rank meets alone ends all of them.
[[nodiscard]] int run_parallel_program(const std::string& name, char** argv, const std::function<int(World&)>& body);

// The axes that were given, dp taking what remains. InputError if the product is not the number of ranks.
[[nodiscard]] MeshSizes mesh_sizes(const Options& options, int ranks);

// All ranks call it once the flags are read: time-out, nodes, order ledger and backend. Prints what was chosen, on rank 0.
void configure_communication(World& world, const Options& options);

// Runs `work` on rank 0 with all of its machine's cores while the others wait, as long as rank 0's process is alive. What it
// returns, or throws, all ranks return or throw. It must not call MPI.
[[nodiscard]] std::string on_root(World& world, const std::function<std::string()>& work);

// Every rank's spans on rank 0, on rank 0's clock.
[[nodiscard]] std::vector<TraceSpan> gather_spans(World& world, const std::vector<TraceSpan>& mine);

// Adds the mesh's sizes, every rank's memory and their traffic to rank 0's report; all ranks call it.
void gather_report(Report& report, World& world, const Mesh& mesh, const TrafficLedger& traffic);

}  // namespace ref5d
