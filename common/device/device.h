// The process's one device: its ledgers, its profiler and its main stream.
#pragma once

#include <memory>
#include <string>

#include "common/device/bytes_ledger.h"
#include "common/device/flops_ledger.h"
#include "common/device/memory_ledger.h"
#include "common/device/profiler.h"
#include "common/device/stream.h"
#include "common/device/timeline.h"

namespace ref5d {

class Device {
 public:
  // Before anything else uses the device: the GPU that this process takes, its number among the host's processes (local_rank)
  // modulo the host's GPUs. Throws RunError if there is none. Nothing to choose on the CPU.
  static void select(int local_rank);
  [[nodiscard]] MemoryLedger& memory() { return memory_; }
  [[nodiscard]] FlopsLedger& flops() { return flops_; }
  [[nodiscard]] BytesLedger& bytes() { return bytes_; }
  [[nodiscard]] Profiler& profiler() { return profiler_; }
  [[nodiscard]] Timeline& timeline() { return timeline_; }
  // The stream that computes. Created on first use.
  [[nodiscard]] Stream& compute();
  // Host threads for kernels on the CPU, at most as many as OMP_THREAD_LIMIT allows. RunError if the system does not give them.
  // Without effect on the GPU.
  void set_threads(int n);
  [[nodiscard]] int threads() const { return threads_; }
  // Waits for every stream.
  void synchronize();
  // The build's MODE ("cpu" or "cuda"), and what it runs on.
  [[nodiscard]] static std::string mode();
  [[nodiscard]] static std::string description();

 private:
  MemoryLedger memory_;
  FlopsLedger flops_;
  BytesLedger bytes_;
  Profiler profiler_;
  Timeline timeline_;
  int threads_ = 1;
  std::unique_ptr<Stream> compute_;
};

[[nodiscard]] Device& device();

}  // namespace ref5d
