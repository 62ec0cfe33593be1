#include "common/device/emu/shadow.h"

#include <sys/mman.h>

#include <algorithm>
#include <unordered_map>
#include <vector>

#include "common/device/emu/memory_map.h"

namespace ref5d::emu {
namespace {

std::uint8_t* word_states() { return reinterpret_cast<std::uint8_t*>(kWordStates); }
Cell* word_cells() { return reinterpret_cast<Cell*>(kWordCells); }
Cell* byte_cells() { return reinterpret_cast<Cell*>(kByteCells); }

void reserve(std::uintptr_t at, std::uintptr_t bytes) {
  void* const wanted = reinterpret_cast<void*>(at);
  void* const got =
      mmap(wanted, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
  if (got != wanted)
    throw RunError("the emulator cannot reserve its address space; allow it with: ulimit -v unlimited, vm.overcommit_memory=0");
  madvise(got, bytes, MADV_DONTDUMP);
}

// For cells that tasks of several streams have read: the last read of each but those in the cell itself. Streams that read and
// nobody who writes are usual (weights that are sent while they are used), but few such cells are read by more than two.
class ReadersOfOtherStreams {
 public:
  void add(Cell& c, const Access& read) {
    std::vector<Access>& list = lists_[&c];
    if (!c.read_earlier) list.clear();  // what is there is of another time
    c.read_earlier = true;
    std::erase_if(list, [&](const Access& r) { return stream_slot(r.task) == stream_slot(read.task) || comes_before(r.task); });
    list.push_back(read);
  }
  [[nodiscard]] const std::vector<Access>& of(const Cell& c) { return lists_[&c]; }
  void copy(const Cell& from, const Cell& to) { lists_[&to] = std::vector<Access>(lists_[&from]); }

 private:
  std::unordered_map<const Cell*, std::vector<Access>> lists_;
};
ReadersOfOtherStreams& others() {
  static auto* const kOthers = new ReadersOfOtherStreams;
  return *kOthers;
}

// The rules for one cell. kShared: in shared memory, where only what the same block did counts.
template <bool kShared>
struct Rules {
  static bool same_block(const Access& a, const Access& b) { return a.task == b.task && a.block == b.block; }

  static Fault conflict(const Access& a, const Access& self) {
    if (a.task == self.task) {
      if (a.block == self.block ? ordered_in_block(a, self) : kShared) return Fault::kNone;
      return a.atomic & self.atomic ? Fault::kNone : Fault::kRace;
    }
    return kShared || a.task == 0 || comes_before(a.task) ? Fault::kNone : Fault::kStreamRace;
  }

  static bool ordered(const Access& a, const Access& b) {
    return a.task == b.task ? a.block == b.block && ordered_in_block(a, b) : comes_before(a.task);
  }

  static Fault collide(BadAccess& bad, Fault fault, const Access& other, bool other_writes) {
    bad.other = other;
    bad.other_writes = other_writes;
    return fault;
  }

  static bool same_thread(const Access& a, const Access& b) { return same_block(a, b) && a.thread == b.thread; }
  static bool same_warp(const Access& a, const Access& b) { return same_block(a, b) && a.thread / kWarp == b.thread / kWarp; }

  // Whoever is before the new read in every order need not be remembered: what collides with it collides with the new one. Of
  // those that remain two of one task are enough, of different warps if there are: any thread that writes is unordered with one
  // of them. A task of another stream is moved to the list: the two places are for the one that runs.
  static void note_read(Cell& c, const Access& self) {
    for (Access& r : c.read) {
      if (r.task == 0 || same_thread(r, self) || (kShared && !same_block(r, self)) || ordered(r, self)) {
        r = self;
        return;
      }
    }
    for (Access& r : c.read) {
      if (r.task == self.task) continue;
      others().add(c, r);
      r = self;
      return;
    }
    if (same_warp(c.read[0], c.read[1]) && !same_warp(c.read[0], self))
      (c.read[0].warp_step < c.read[1].warp_step ? c.read[0] : c.read[1]) = self;
  }

  // Of an access that reads: with what others have changed. Of one that writes: with what others have read or changed.
  static Fault check_reads(const Cell& c, Use use, const Access& self, BadAccess& bad) {
    const auto check = [&](const Access& r) {
      if (r.task == 0 || (use == Use::kRead && !r.atomic)) return Fault::kNone;
      const Fault f = conflict(r, self);
      return f == Fault::kNone ? f : collide(bad, f, r, r.atomic);
    };
    for (const Access& r : c.read)
      if (const Fault f = check(r); f != Fault::kNone) return f;
    if (!c.read_earlier) return Fault::kNone;
    for (const Access& r : others().of(c))
      if (const Fault f = check(r); f != Fault::kNone) return f;
    return Fault::kNone;
  }

  static Fault touch(Cell& c, Use use, const Access& self, BadAccess& bad) {
    const bool written = kShared ? same_block(c.write, self) : c.written;
    if (use != Use::kWrite && !written) return Fault::kUninitialized;
    if (const Fault f = conflict(c.write, self); f != Fault::kNone) return collide(bad, f, c.write, true);
    if (const Fault f = check_reads(c, use, self, bad); f != Fault::kNone) return f;
    if (use == Use::kWrite) {
      c = {self, {}, true, false, false};
      return Fault::kNone;
    }
    if (use == Use::kAtomic) c.write = self;
    note_read(c, self);
    return Fault::kNone;
  }
};

void split(Cell& word, Cell* bytes) {
  if (word.split) return;
  std::fill(bytes, bytes + 4, word);
  if (word.read_earlier)
    for (int b = 0; b < 4; ++b) others().copy(word, bytes[b]);
  word.split = true;
}

// Nobody has written the word before. It must have been allocated before, too.
Fault first_touch(std::uintptr_t address, BadAccess& bad) {
  bad.other = {.task = allocated_by(address)};
  return bad.other.task == 0 || comes_before(bad.other.task) ? Fault::kNone : Fault::kStreamRace;
}

template <bool kShared>
Fault touch_range(std::uintptr_t address, std::size_t bytes, Use use, const Access& self, BadAccess& bad) {
  std::uintptr_t at = address - kMemory;
  const std::uintptr_t end = at + bytes;
  while (at < end) {
    Cell& word = word_cells()[at / 4];
    const std::uintptr_t first = at % 4, last = std::min<std::uintptr_t>(4, first + (end - at));
    const std::uint8_t state = word_states()[at / 4];
    if (state == kFreed) return Fault::kUseAfterFree;
    if (last > state) return Fault::kOutOfBounds;
    if (!kShared && !(word.split ? byte_cells()[at] : word).written)
      if (const Fault f = first_touch(kMemory + at, bad); f != Fault::kNone) return f;
    if (first == 0 && last == 4 && !word.split) {
      if (const Fault f = Rules<kShared>::touch(word, use, self, bad); f != Fault::kNone) return f;
    } else {
      Cell* const cells = byte_cells() + (at - first);
      split(word, cells);
      for (std::uintptr_t b = first; b < last; ++b)
        if (const Fault f = Rules<kShared>::touch(cells[b], use, self, bad); f != Fault::kNone) return f;
      if (first == 0 && last == 4 && use == Use::kWrite) {  // whole again
        word = cells[0];
      }
    }
    at += last - first;
  }
  return Fault::kNone;
}

// To zeros, as they are at first. Those of a large range are given back.
void clear_cells(std::uintptr_t begin, std::size_t bytes) {
  constexpr std::size_t kPage = 4096, kLarge = 4 << 20, kManyBytes = 64 << 10;
  if (bytes >= kManyBytes)  // 64 times as much, if anybody has touched parts of words
    madvise(byte_cells() + (begin - kMemory), bytes / 64 * kPage, MADV_DONTNEED);
  Cell* const first = word_cells() + (begin - kMemory) / 4;
  const std::size_t words = (bytes + 3) / 4;
  if (bytes < kLarge) {
    std::fill_n(first, words, Cell{});
    return;
  }
  const auto address = reinterpret_cast<std::uintptr_t>(first), end = address + words * sizeof(Cell);
  const std::uintptr_t pages = (address + kPage - 1) / kPage * kPage, pages_end = end / kPage * kPage;
  std::fill(first, reinterpret_cast<Cell*>(pages), Cell{});
  madvise(reinterpret_cast<void*>(pages), pages_end - pages, MADV_DONTNEED);
  std::fill(reinterpret_cast<Cell*>(pages_end), first + words, Cell{});
}

}  // namespace

void reserve_memory() {
  static const bool kDone = [] {
    reserve(kMemory, kMemoryBytes);
    reserve(kWordStates, kMemoryBytes / 4);
    reserve(kWordCells, kMemoryBytes / 4 * sizeof(Cell));
    reserve(kByteCells, kMemoryBytes * sizeof(Cell));
    return true;
  }();
  (void)kDone;
}

void mark_live(std::uintptr_t begin, std::size_t bytes) {
  std::uint8_t* const states = word_states() + (begin - kMemory) / 4;
  std::fill_n(states, bytes / 4, std::uint8_t{4});
  if (bytes % 4 != 0) states[bytes / 4] = static_cast<std::uint8_t>(bytes % 4);
}

void mark_gone(std::uintptr_t begin, std::size_t bytes, std::uint8_t state) {
  clear_cells(begin, bytes);
  std::fill_n(word_states() + (begin - kMemory) / 4, (bytes + 3) / 4, state);
}

Fault touch(std::uintptr_t address, std::size_t bytes, Use use, const Access& self, BadAccess& bad) {
  return address - kMemory < kSharedBytes ? touch_range<true>(address, bytes, use, self, bad)
                                          : touch_range<false>(address, bytes, use, self, bad);
}

Fault check_free(std::uintptr_t begin, std::size_t bytes, const Access& self, BadAccess& bad) {
  if (all_come_before()) return Fault::kNone;
  const auto check = [&](const Cell& c) {
    std::vector<Access> all{c.write, c.read[0], c.read[1]};
    if (c.read_earlier) all.insert(all.end(), others().of(c).begin(), others().of(c).end());
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (all[i].task == 0 || all[i].task == self.task || comes_before(all[i].task)) continue;
      bad.other = all[i];
      bad.other_writes = i == 0;
      return Fault::kStreamRace;
    }
    return Fault::kNone;
  };
  for (std::uintptr_t at = begin - kMemory; at < begin - kMemory + bytes; at += 4) {
    const Cell& word = word_cells()[at / 4];
    for (std::uintptr_t b = 0; b < (word.split ? 4 : 1); ++b)
      if (const Fault f = check(word.split ? byte_cells()[at + b] : word); f != Fault::kNone) return f;
  }
  return Fault::kNone;
}

}  // namespace ref5d::emu
