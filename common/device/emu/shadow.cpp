#include "common/device/emu/shadow.h"

#include <sys/mman.h>

#include <algorithm>

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

  static Fault collide(BadAccess& bad, Fault fault, const Access& other, bool other_writes) {
    bad.other = other;
    bad.other_writes = other_writes;
    return fault;
  }

  // Remembers a read unless two others, of different threads and unordered with it, are there already.
  static void note_read(Cell& c, const Access& self) {
    for (Access& r : c.read) {
      if (r.task == 0 || (r.task == self.task && r.block == self.block && r.thread == self.thread) ||
          (kShared && !same_block(r, self)) || conflict(r, self) == Fault::kNone) {
        r = self;
        return;
      }
    }
  }

  static Fault touch(Cell& c, Use use, const Access& self, BadAccess& bad) {
    const bool written = kShared ? same_block(c.write, self) : c.written;
    if (use != Use::kWrite && !written) return Fault::kUninitialized;
    if (const Fault f = conflict(c.write, self); f != Fault::kNone) return collide(bad, f, c.write, true);
    if (use == Use::kRead) {
      note_read(c, self);
      return Fault::kNone;
    }
    for (const Access& r : c.read) {
      if (r.task == 0) continue;
      if (const Fault f = conflict(r, self); f != Fault::kNone) return collide(bad, f, r, false);
    }
    c.write = self;
    c.written = true;
    c.read[0].task = c.read[1].task = 0;
    return Fault::kNone;
  }
};

void split(Cell& word, Cell* bytes) {
  if (word.split) return;
  std::fill(bytes, bytes + 4, word);
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
    if (!kShared && !word.written && !word.split)
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
        word.split = false;
      }
    }
    at += last - first;
  }
  return Fault::kNone;
}

// To zeros, as they are at first. Those of a large range are given back.
void clear_cells(std::uintptr_t begin, std::size_t bytes) {
  constexpr std::size_t kPage = 4096, kLarge = 4 << 20;
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
    for (const Access* a : {&c.write, &c.read[0], &c.read[1]}) {
      if (a->task == 0 || a->task == self.task || comes_before(a->task)) continue;
      bad.other = *a;
      bad.other_writes = a == &c.write;
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
