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
  const std::string what = fmt::format("{} of {} x {} over {}", op.data(), count, dtype.data(), axis.data());
  if (lane != kCollectives) return what + fmt::format(" after {} collectives", collectives);
  return what + (detail == 0 ? "" : fmt::format(" (root or operation {})", detail));
}

void OrderLedger::called(const Group& group, const std::string& axis, const std::string& op, std::int64_t count,
                         const std::string& dtype, int detail) {
  if (!on_) return;
  for (int r = 0; r < group.size(); ++r) {
    if (r == group.rank) continue;
    const int rank = group.ranks[static_cast<std::size_t>(r)];
    tell(rank, {cut_to_size(axis), cut_to_size(op), cut_to_size(dtype), count, 0, group.tag, detail, kCollectives});
    ++peers_[rank].collectives;
  }
  compare();
}

void OrderLedger::message(const Group& group, const std::string& axis, int peer, std::int64_t count, const std::string& dtype,
                          bool sent) {
  if (!on_) return;
  const int rank = group.ranks[static_cast<std::size_t>(peer)];
  const Lane lane = sent == (rank > world().rank()) ? kUp : kDown;
  tell(rank,
       {cut_to_size(axis), cut_to_size("message"), cut_to_size(dtype), count, peers_[rank].collectives, group.tag, 0, lane});
  compare();
}
void OrderLedger::sends(const Group& group, const std::string& axis, int peer, std::int64_t count, const std::string& dtype) {
  message(group, axis, peer, count, dtype, true);
}
void OrderLedger::receives(const Group& group, const std::string& axis, int peer, std::int64_t count,
                           const std::string& dtype) {
  message(group, axis, peer, count, dtype, false);
}

void OrderLedger::tell(int rank, Notice notice) {
  Peer& peer = peers_[rank];
  ++peer.made;
  peer.lanes[static_cast<std::size_t>(notice.lane)].mine.push_back(notice);
  outgoing_.push_back({notice, {}});
  Outgoing& out = outgoing_.back();
  mpi::check(MPI_Isend(&out.notice, sizeof(Notice), MPI_BYTE, rank, kTag, MPI_COMM_WORLD, &out.request), "MPI_Isend");
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
    mpi::Messages message;
    message.receive(reinterpret_cast<std::byte*>(&notice), sizeof(notice), status.MPI_SOURCE, kTag);
    message.wait("a notice of --check-order", world().timeout());
    Peer& peer = peers_[status.MPI_SOURCE];
    ++peer.heard;
    peer.lanes[static_cast<std::size_t>(notice.lane)].theirs.push_back(notice);
  }
  for (auto& [rank, peer] : peers_) compare_with(rank, peer);
}

void OrderLedger::compare_with(int rank, Peer& peer) const {
  for (Calls& calls : peer.lanes) {
    for (; !calls.mine.empty() && !calls.theirs.empty(); ++calls.compared) {
      const Notice mine = calls.mine.front(), theirs = calls.theirs.front();
      if (!(mine == theirs)) {
        const int low = std::min(world().rank(), rank), high = std::max(world().rank(), rank);
        const std::string which = mine.lane == kCollectives
                                      ? fmt::format("call {} between them", calls.compared + 1)
                                      : fmt::format("message {} from rank {} to rank {}", calls.compared + 1,
                                                    mine.lane == kUp ? low : high, mine.lane == kUp ? high : low);
        throw RunError(
            fmt::format("ranks {} and {} disagree on their communication: {} is {} on rank {}, but {}{} on rank {}; all ranks "
                        "must make the same calls in the same order",
                        world().rank(), rank, which, mine.text(), world().rank(), theirs.text(),
                        mine.text() == theirs.text() ? " of another communicator" : "", rank));
      }
      calls.mine.pop_front();
      calls.theirs.pop_front();
    }
  }
}

void OrderLedger::expect_no_more(int rank, const Peer& peer) const {
  for (const Calls& calls : peer.lanes) {
    if (calls.mine.empty() && calls.theirs.empty()) continue;
    const bool own = !calls.mine.empty();
    throw RunError(fmt::format("rank {} has made a call that rank {} has not: {}", own ? world().rank() : rank,
                               own ? rank : world().rank(), (own ? calls.mine : calls.theirs).front().text()));
  }
}

void OrderLedger::finish(const Group& everyone) {
  if (!on_) return;
  // How many calls each rank has made with each other one. Notices may still be on their way: they are waited for.
  Bytes mine(static_cast<std::size_t>(world().size()) * sizeof(std::int64_t));
  for (const auto& [rank, peer] : peers_) {
    const std::int64_t made = peer.made;
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
    mpi::wait_until(
        [&] {
          compare();
          return peer.heard >= made && outgoing_.empty();
        },
        "the last notices of --check-order", world().timeout());
    expect_no_more(other, peer);
  }
  // What a rank calls from now on must not reach one that is still comparing.
  barrier_on_host(everyone);
}

}  // namespace ref5d
