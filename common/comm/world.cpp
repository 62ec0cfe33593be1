#include "common/comm/world.h"

#include <mpi.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <stdexcept>

#include "common/comm/mpi_wait.h"
#include "common/device/error.h"

namespace ref5d {

namespace {
World* the_world = nullptr;

// How long a rank that fails waits to hear whether the others do, too.
constexpr std::chrono::seconds kGrace{3};
constexpr int kFailureTag = static_cast<int>(ReservedTag::kFailure);

bool poll_until(const std::function<bool()>& done, std::chrono::nanoseconds time) {
  const auto end = std::chrono::steady_clock::now() + time;
  while (!done()) {
    if (std::chrono::steady_clock::now() > end) return false;
    usleep(1000);
  }
  return true;
}
}  // namespace

World& world() {
  if (the_world == nullptr) throw std::logic_error("no world has been started");
  return *the_world;
}

World::World() {
  int provided = 0;
  MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided);  // see on_root
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
  MPI_Comm_size(MPI_COMM_WORLD, &size_);
  the_world = this;
  everyone_.rank = rank_;
  everyone_.ranks.resize(static_cast<std::size_t>(size_));
  std::iota(everyone_.ranks.begin(), everyone_.ranks.end(), 0);
  find_hosts();
}

void World::find_hosts() {
  char name[MPI_MAX_PROCESSOR_NAME];
  int length = 0;
  MPI_Get_processor_name(name, &length);
  std::map<std::string, int> numbers;
  for (const Bytes& b : all_gather_on_host(everyone_, to_bytes(std::string(name, static_cast<std::size_t>(length))))) {
    hosts_.push_back(to_text(b));
    nodes_.push_back(numbers.emplace(hosts_.back(), static_cast<int>(numbers.size())).first->second);
  }
  const auto mine = hosts_.begin() + rank_;
  local_rank_ = static_cast<int>(std::count(hosts_.begin(), mine, *mine));
  local_size_ = static_cast<int>(std::count(hosts_.begin(), hosts_.end(), *mine));
}

int World::node_count() const { return static_cast<int>(std::set<int>(nodes_.begin(), nodes_.end()).size()); }

void World::set_ranks_per_node(std::int64_t n) {
  for (int r = 0; r < size_; ++r) nodes_[static_cast<std::size_t>(r)] = static_cast<int>(r / n);
}

// Over TCP, UCX closes a connection by a request that the other side must answer, and MPICH waits in its last barrier without
// answering: a rank that comes late would wait for ever, or find its peers gone. So every rank first hears from every other,
// both ways, and then leaves the connections time to fall silent.
World::~World() {
  if (size_ > 1) {
    mpi::Messages goodbyes;
    std::vector<std::byte> nothing(static_cast<std::size_t>(size_));
    for (int r = 0; r < size_; ++r) {
      if (r == rank_) continue;
      goodbyes.receive(&nothing[static_cast<std::size_t>(r)], 1, r, static_cast<int>(ReservedTag::kGoodbye));
      goodbyes.send(&nothing[static_cast<std::size_t>(rank_)], 1, r, static_cast<int>(ReservedTag::kGoodbye));
    }
    poll_until(
        [&] {
          try {
            return goodbyes.complete("goodbye");
          } catch (const RunError&) {  // a peer that has gone
            return true;
          }
        },
        std::chrono::seconds(10));
    if (std::set<std::string>(hosts_.begin(), hosts_.end()).size() > 1) usleep(200'000);
  }
  MPI_Finalize();
  the_world = nullptr;
}

void World::fail(int status, const std::function<void()>& report) {
  if (size_ == 1) return report();
  // Only bad input is found by all of them before anything is in flight.
  if (everyone_failed(report) && status == kExitBadInput) return;
  usleep(100'000);  // the launcher drops what it has not yet read of the report
  MPI_Abort(MPI_COMM_WORLD, status);
}

bool World::everyone_failed(const std::function<void()>& report) {
  char nothing = 0;
  const auto arrived = [&](int from) {
    int found = 0;
    MPI_Iprobe(from, kFailureTag, MPI_COMM_WORLD, &found, MPI_STATUS_IGNORE);
    if (found == 0) return false;
    MPI_Request request;
    MPI_Irecv(&nothing, 1, MPI_CHAR, from, kFailureTag, MPI_COMM_WORLD, &request);
    return poll_until(
        [&] {
          int done = 0;
          MPI_Test(&request, &done, MPI_STATUS_IGNORE);
          return done != 0;
        },
        kGrace);
  };
  const auto tell = [&](int to) {
    MPI_Request request;
    MPI_Isend(&nothing, 1, MPI_CHAR, to, kFailureTag, MPI_COMM_WORLD, &request);
    MPI_Request_free(&request);
  };
  if (!is_root()) {
    tell(0);
    // Rank 0 is well, or cannot answer. One of the others reports: the first to come here ends them all.
    if (!poll_until([&] { return arrived(0); }, kGrace + std::min(rank_, 16) * std::chrono::milliseconds(200))) {
      report();
      return false;
    }
    return poll_until([&] { return arrived(0); }, 2 * kGrace);
  }
  report();
  std::set<int> well(everyone_.ranks.begin() + 1, everyone_.ranks.end());
  const bool all = poll_until(
      [&] {
        std::erase_if(well, [&](int r) {
          const bool failed = arrived(r);
          if (failed) tell(r);  // first answer: it need not report
          return failed;
        });
        return well.empty();
      },
      kGrace);
  if (all) std::for_each(everyone_.ranks.begin() + 1, everyone_.ranks.end(), tell);  // second: everyone has failed
  return all;
}

}  // namespace ref5d
