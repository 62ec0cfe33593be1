// Writes what a step computed to a safetensors file: for comparison with another framework, or with another layout.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "common/model/context.h"
#include "common/train/trainer.h"

namespace ref5d {

// Collects tensors micro-batch by micro-batch on the host. Each is [T, C] per micro-batch and becomes [batch, seq, C] of the
// global batch.
class DumpProbe : public Probe {
 public:
  explicit DumpProbe(bool sublayers) : sublayers_(sublayers) {}
  void see(const std::string& name, const Tensor& tensor, Stream& stream) override;
  [[nodiscard]] bool wants_sublayers() const override { return sublayers_; }
  // gather(name, this rank's part) gives the whole, or an empty tensor, which is left out; none where all is here.
  using GatherNamed = std::function<HostTensor(const std::string& name, const HostTensor& mine)>;
  [[nodiscard]] NamedTensors collected(std::int64_t batch, std::int64_t seq, const GatherNamed& gather) const;
  // Of what other ranks alone have seen this one has nothing, which is gathered like the rest.
  void add_names(const std::vector<std::string>& names);
  [[nodiscard]] std::vector<std::string> names() const;

 private:
  bool sublayers_;
  NamedTensors parts_;
};

// Follows a run and collects: init/NAME; of the first step tokens, labels, logits, loss, grad_norm, hidden/I and grad/NAME
// (before clipping), if `full` also every sublayer's tensors; of the last final/NAME, and step_loss. Hugging Face names.
class DumpingRun {
 public:
  DumpingRun(Trainer& trainer, const Dataset& data, std::int64_t global_batch, bool full);
  // Call after the first step, and at the end.
  void after_first_step(const StepResult& first);
  // Everything, by name.
  [[nodiscard]] const NamedTensors& finish(const std::vector<double>& step_losses);

 private:
  Trainer& trainer_;
  std::int64_t batch_, seq_;
  DumpProbe probe_;
  NamedTensors tensors_;
};

}  // namespace ref5d
