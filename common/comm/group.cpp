#include "common/comm/group.h"

#include <cstdint>
#include <cstring>

#include "common/comm/mpi_wait.h"
#include "common/comm/world.h"
#include "common/device/device.h"

namespace ref5d {

namespace {

constexpr int kTag = static_cast<int>(ReservedTag::kHost);

std::chrono::nanoseconds limit(bool patient) { return patient ? std::chrono::nanoseconds(0) : world().timeout(); }

// A message is its length, then its bytes.
void send(const Bytes& bytes, int to, bool patient) {
  const std::uint64_t length = bytes.size();
  mpi::Messages messages;
  messages.send(reinterpret_cast<const std::byte*>(&length), sizeof(length), to, kTag);
  messages.send(bytes.data(), bytes.size(), to, kTag);
  messages.wait("a message to rank " + std::to_string(to), limit(patient));
}

Bytes receive(int from, bool patient) {
  std::uint64_t length = 0;
  const std::string what = "a message from rank " + std::to_string(from);
  mpi::Messages messages;
  messages.receive(reinterpret_cast<std::byte*>(&length), sizeof(length), from, kTag);
  messages.wait(what, limit(patient));
  Bytes bytes(length);
  messages.receive(bytes.data(), bytes.size(), from, kTag);
  messages.wait(what, limit(patient));
  return bytes;
}

}  // namespace

std::vector<Bytes> gather_on_host(const Group& group, const Bytes& mine, bool patient) {
  device().synchronize();  // what the others wait for first, this rank may still have to do
  if (group.rank != 0) {
    send(mine, group.ranks[0], patient);
    return {};
  }
  std::vector<Bytes> all{mine};
  for (int r = 1; r < group.size(); ++r) all.push_back(receive(group.ranks[static_cast<std::size_t>(r)], patient));
  return all;
}

Bytes broadcast_on_host(const Group& group, const Bytes& of_rank_0, bool patient) {
  device().synchronize();
  if (group.rank != 0) return receive(group.ranks[0], patient);
  for (int r = 1; r < group.size(); ++r) send(of_rank_0, group.ranks[static_cast<std::size_t>(r)], patient);
  return of_rank_0;
}

std::vector<Bytes> all_gather_on_host(const Group& group, const Bytes& mine) {
  std::vector<Bytes> all = gather_on_host(group, mine);
  Bytes joined;
  for (const Bytes& b : all) {
    const std::uint64_t length = b.size();
    const auto* head = reinterpret_cast<const std::byte*>(&length);
    joined.insert(joined.end(), head, head + sizeof(length));
    joined.insert(joined.end(), b.begin(), b.end());
  }
  joined = broadcast_on_host(group, joined);
  if (group.rank == 0) return all;
  for (std::size_t at = 0; at < joined.size();) {
    std::uint64_t length = 0;
    std::memcpy(&length, joined.data() + at, sizeof(length));
    at += sizeof(length);
    const auto begin = joined.begin() + static_cast<std::ptrdiff_t>(at);
    all.emplace_back(begin, begin + static_cast<std::ptrdiff_t>(length));
    at += length;
  }
  return all;
}

void barrier_on_host(const Group& group, bool patient) {
  (void)gather_on_host(group, {}, patient);
  (void)broadcast_on_host(group, {}, patient);
}

Bytes share_on_host(const Group& group, const Bytes& of_rank_0) {
  Bytes shared = broadcast_on_host(group, of_rank_0);
  barrier_on_host(group);
  return shared;
}

namespace {
constexpr int kAliveTag = static_cast<int>(ReservedTag::kAlive);

bool has_message(int from, int tag) {
  int found = 0;
  mpi::check(MPI_Iprobe(from, tag, MPI_COMM_WORLD, &found, MPI_STATUS_IGNORE), "MPI_Iprobe");
  return found != 0;
}
}  // namespace

void send_sign_of_life(const Group& group) {
  static const std::byte kNothing{};
  for (int r = 1; r < group.size(); ++r) {
    MPI_Request request;
    mpi::check(MPI_Isend(&kNothing, 1, MPI_BYTE, group.ranks[static_cast<std::size_t>(r)], kAliveTag, MPI_COMM_WORLD, &request),
               "MPI_Isend");
    mpi::check(MPI_Request_free(&request), "MPI_Request_free");
  }
}

void wait_while_alive(const Group& group) {
  if (group.rank == 0) return;
  const int root = group.ranks[0];
  const char* const what = "a sign of life from rank 0";
  const auto take_signs = [&] {
    while (has_message(root, kAliveTag)) {
      std::byte nothing{};
      mpi::Messages sign;
      sign.receive(&nothing, 1, root, kAliveTag);
      sign.wait(what, world().timeout());
    }
  };
  while (!has_message(root, kTag)) {
    mpi::wait_until([&] { return has_message(root, kTag) || has_message(root, kAliveTag); }, what, world().timeout());
    take_signs();
  }
  take_signs();  // those that came before the message
}

Bytes to_bytes(const std::string& text) {
  const auto* begin = reinterpret_cast<const std::byte*>(text.data());
  return {begin, begin + text.size()};
}
std::string to_text(const Bytes& bytes) { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }

Bytes to_bytes(double value) {
  Bytes bytes(sizeof(value));
  std::memcpy(bytes.data(), &value, sizeof(value));
  return bytes;
}
double to_number(const Bytes& bytes) {
  double value = 0;
  std::memcpy(&value, bytes.data(), sizeof(value));
  return value;
}

}  // namespace ref5d
