#include "common/device/emu/fault.h"

#include <fmt/core.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <map>
#include <sstream>

#include "common/device/emu/block.h"
#include "common/device/emu/memory_map.h"
#include "common/device/emu/random.h"
#include "common/device/emu/shadow.h"
#include "common/device/emu/stream_order.h"

extern "C" const char __executable_start;  // the linker's

namespace ref5d::emu {
namespace {

std::uintptr_t program_begin() { return reinterpret_cast<std::uintptr_t>(&__executable_start); }

// Runs a command and returns what it prints.
std::string output_of(const std::string& command) {
  std::string out;
  FILE* const pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return out;
  std::array<char, 512> buffer;
  while (std::fgets(buffer.data(), buffer.size(), pipe) != nullptr) out += buffer.data();
  pclose(pipe);
  return out;
}

// A line of addr2line's, without the source directory and the remarks; empty if it says nothing of a kernel's author's.
std::string useful(std::string line) {
  if (line.empty() || line[0] == '?' || line.find("emu.h:") != std::string::npos) return {};
  for (const std::string_view root : {REF5D_SOURCE_DIR "/", "./"})
    if (line.starts_with(root)) line.erase(0, root.size());
  return line.substr(0, line.find(' '));
}

std::string find_line(std::uint32_t pc) {
  const std::string output = output_of(fmt::format("addr2line -i -e /proc/{}/exe {:#x} 2>/dev/null", getpid(), pc));
  std::string calls;
  std::istringstream lines(output);
  for (std::string line; std::getline(lines, line);) {
    line = useful(line);
    if (!line.empty()) calls += (calls.empty() ? "" : " from ") + line;
  }
  return calls;
}

std::string at_line(std::uint32_t pc) {
  const std::string line = describe_line(pc);
  return line.empty() ? "" : " at " + line;
}

std::string seed_remark() { return fmt::format(" (REF5D_EMU_SEED={})", seed()); }

// Of the kernel that runs.
std::string describe_block(const Access& a) {
  const auto& grid = Block::current().launch().grid;
  return fmt::format("({},{},{})", a.block % grid[0], a.block / grid[0] % grid[1], a.block / grid[0] / grid[1]);
}

// "thread 40 writes at a.cu:12".
std::string describe_other(const BadAccess& bad) {
  const Access &a = bad.self, &o = bad.other;
  const std::string what = (o.atomic           ? " changes by an atomic operation"
                            : bad.other_writes ? " writes"
                                               : " reads") +
                           at_line(o.pc);
  if (o.task != a.task && o.pc == 0 && task_name(o.task) == kAllocation)
    return fmt::format("it is allocated on stream \"{}\"", stream_name(o.task));
  if (o.task != a.task) return fmt::format("{} on stream \"{}\"{}", task_name(o.task), stream_name(o.task), what);
  if (o.block != a.block) return fmt::format("block {}, thread {}{}", describe_block(o), o.thread, what);
  return fmt::format("thread {}{}", o.thread, what);
}

}  // namespace

const char* fault_name(Fault fault) {
  static constexpr std::array kNames = {
      "no fault",       "data race",         "streams out of order", "uninitialized read", "out of bounds",
      "use after free", "misaligned access", "host memory",          "another's stack",    "barrier divergence",
      "early exit",     "missing lane",      "float atomic",         "endless thread",     "resources"};
  return kNames.at(static_cast<std::size_t>(fault));
}

std::uint32_t program_offset(std::uintptr_t pc) { return static_cast<std::uint32_t>(pc - program_begin()); }

std::string describe_line(std::uint32_t pc) {
  static auto* const kKnown = new std::map<std::uint32_t, std::string>;
  if (pc == 0) return {};
  const auto found = kKnown->find(pc);
  return found != kKnown->end() ? found->second : (*kKnown)[pc] = find_line(pc - 1);
}

std::string describe_place(const Access& a) {
  const std::string& name = task_name(a.task);
  return a.pc == 0 ? name : fmt::format("{}, block {}, thread {}", name, describe_block(a), a.thread);
}

void throw_fault(Fault fault, const std::string& what) {
  const auto& [x, y, z] = Block::current().index();
  throw EmulatorError(fault, fmt::format("{} in {}, block ({},{},{}): {}{}", fault_name(fault), *Block::current().launch().name,
                                         x, y, z, what, seed_remark()));
}

void throw_bad_access(const BadAccess& bad) {
  const auto why = [&]() -> std::string {
    switch (bad.fault) {
      case Fault::kRace:
        return "; " + describe_other(bad) +
               (bad.other.block == bad.self.block ? ", with no barrier between"
                                                  : ", and nothing orders the blocks of a launch");
      case Fault::kStreamRace: return "; " + describe_other(bad) + ", with no event between";
      case Fault::kUninitialized: return " that nobody has written";
      case Fault::kMisaligned: return ", an address that is no multiple of their size";
      case Fault::kFloatAtomic: return " by a floating-point atomic, whose result would depend on the order of the threads";
      case Fault::kOtherStack: return ", which is another thread's local memory";
      default: return "";
    }
  };
  throw EmulatorError(bad.fault,
                      fmt::format("{} in {}: {} {} bytes {}{}{}{}", fault_name(bad.fault), describe_place(bad.self),
                                  task_name(bad.self.task) == kFree                  ? "gives back"
                                  : bad.writes && bad.fault != Fault::kUninitialized ? "writes"
                                                                                     : "reads",
                                  bad.bytes, describe_memory(bad.address), at_line(bad.self.pc), why(), seed_remark()));
}

}  // namespace ref5d::emu
