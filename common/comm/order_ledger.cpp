#include "common/comm/order_ledger.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "common/comm/mpi_wait.h"
#include "common/comm/world.h"
#include "common/device/error.h"

namespace ref5d {

namespace {
constexpr int kTag = static_cast<int>(ReservedTag::kOrder);

std::array<char, 16> cut_to_size(const std::string& text) {
  std::array<char, 16> out{};
  std::copy_n(text.begin(), std::min(text.size(), out.size() - 1), out.begin());
  return out;
}
}  // namespace

std::string OrderLedger::Notice::text() const {
  const std::string more = detail == 0 ? "" : fmt::format(" (root or operation {})", detail);
  return fmt::format("{} of {} x {} over {}{}", op.data(), count, dtype.data(), axis.data(), more);
}

void OrderLedger::called(const Group& group, const std::string& axis, const std::string& op, std::int64_t count,
                         const std::string& dtype, int detail) {
  if (!on_) return;
  const Notice notice{cut_to_size(axis), cut_to_size(op), cut_to_size(dtype), count, group.tag, detail};
  for (int r = 0; r < group.size(); ++r) {
    if (r == group.rank) continue;
    const int to = group.ranks[static_cast<std::size_t>(r)];
    peers_[to].mine.push_back(notice);
    outgoing_.push_back({notice, {}});
    mpi::check(
        MPI_Isend(&outgoing_.back().notice, sizeof(Notice), MPI_BYTE, to, kTag, MPI_COMM_WORLD, &outgoing_.back().request),
        "MPI_Isend");
  }
  compare();
}

void OrderLedger::compare() {
  if (!on_) return;
  std::erase_if(outgoing_, [](Outgoing& o) {
    int done = 0;
    mpi::check(MPI_Test(&o.request, &done, MPI_STATUS_IGNORE), "MPI_Test");
    return done != 0;
  });
  for (;;) {
    int found = 0;
    MPI_Status status;
    mpi::check(MPI_Iprobe(MPI_ANY_SOURCE, kTag, MPI_COMM_WORLD, &found, &status), "MPI_Iprobe");
    if (found == 0) break;
    Notice notice;
    std::vector<MPI_Request> requests;
    mpi::post_receive(requests, reinterpret_cast<std::byte*>(&notice), sizeof(notice), status.MPI_SOURCE, kTag);
    mpi::wait_all(requests, "a notice of --check-order", world().timeout());
    peers_[status.MPI_SOURCE].theirs.push_back(notice);
  }
  for (auto& [rank, peer] : peers_) compare_with(rank, peer);
}

void OrderLedger::compare_with(int rank, Peer& peer) const {
  for (; !peer.mine.empty() && !peer.theirs.empty(); ++peer.compared) {
    const Notice mine = peer.mine.front(), theirs = peer.theirs.front();
    if (!(mine == theirs)) {
      throw RunError(
          fmt::format("ranks {} and {} disagree on their communication: call {} between them is {} on rank {}, but {} "
                      "on rank {}; all ranks must make the same calls in the same order",
                      world().rank(), rank, peer.compared + 1, mine.text(), world().rank(), theirs.text(), rank));
    }
    peer.mine.pop_front();
    peer.theirs.pop_front();
  }
}

void OrderLedger::finish(const Group& everyone) {
  if (!on_) return;
  // How many calls each rank has made with each other one. Notices may still be on their way: they are waited for.
  Bytes mine(static_cast<std::size_t>(world().size()) * sizeof(std::int64_t));
  for (const auto& [rank, peer] : peers_) {
    const std::int64_t made = peer.made();
    std::memcpy(mine.data() + static_cast<std::size_t>(rank) * sizeof(made), &made, sizeof(made));
  }
  const std::vector<Bytes> all = all_gather_on_host(everyone, mine);
  for (int r = 0; r < everyone.size(); ++r) {
    if (r == everyone.rank) continue;
    std::int64_t made = 0;
    std::memcpy(&made, all[static_cast<std::size_t>(r)].data() + static_cast<std::size_t>(world().rank()) * sizeof(made),
                sizeof(made));
    const int other = everyone.ranks[static_cast<std::size_t>(r)];
    Peer& peer = peers_[other];
    const std::int64_t own = peer.made();
    mpi::wait_until(
        [&] {
          compare();
          return peer.heard() >= made && outgoing_.empty();
        },
        "the last notices of --check-order", world().timeout());
    if (own == made) continue;
    throw RunError(fmt::format("rank {} has made a call that rank {} has not: {}", own > made ? world().rank() : other,
                               own > made ? other : world().rank(), (own > made ? peer.mine : peer.theirs).front().text()));
  }
}

}  // namespace ref5d
