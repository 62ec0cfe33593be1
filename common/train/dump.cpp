#include "common/train/dump.h"

#include <stdexcept>

#include "common/kernels/elementwise.h"

namespace ref5d {

void DumpProbe::see(const std::string& name, const Tensor& tensor, Stream& stream) {
  Tensor whole = tensor;
  if (!whole.contiguous()) {  // columns of a packed matrix
    whole = Tensor::empty(tensor.shape(), tensor.dtype(), MemoryCategory::kWorkspace, stream);
    copy_matrix(stream, whole, tensor);
  }
  const HostTensor host = whole.to_host(stream);
  auto [it, fresh] = parts_.try_emplace(name, host);
  if (fresh) return;
  it->second.shape[0] += host.shape[0];
  it->second.data.insert(it->second.data.end(), host.data.begin(), host.data.end());
}

std::vector<std::string> DumpProbe::names() const {
  std::vector<std::string> all;
  for (const auto& [name, part] : parts_) all.push_back(name);
  return all;
}

void DumpProbe::add_names(const std::vector<std::string>& names) {
  for (const std::string& name : names) parts_.try_emplace(name, HostTensor{Dtype::kFp32, {0, 1}, {}});
}

NamedTensors DumpProbe::collected(std::int64_t batch, std::int64_t seq, const GatherNamed& gather) const {
  NamedTensors all;
  for (const auto& [name, part] : parts_) {
    HostTensor t = gather ? gather(name, part) : part;
    if (t.numel() == 0) continue;
    if (t.shape[0] != batch * seq) {
      throw std::logic_error("the dump of " + name + " has " + std::to_string(t.shape[0]) + " rows for " +
                             std::to_string(batch) + " x " + std::to_string(seq) +
                             " tokens: those of other ranks were not gathered");
    }
    t.shape = {batch, seq, t.numel() / (batch * seq)};
    all.emplace(name, std::move(t));
  }
  return all;
}

DumpingRun::DumpingRun(Trainer& trainer, const Dataset& data, std::int64_t global_batch_size, bool full)
    : trainer_(trainer), probe_(full) {
  const GlobalBatch batch = global_batch(data, trainer.steps_taken(), global_batch_size);
  batch_ = global_batch_size;
  seq_ = static_cast<std::int64_t>(batch.rows.front().tokens.size());
  std::vector<double> tokens, labels;
  for (const Row& row : batch.rows) {
    tokens.insert(tokens.end(), row.tokens.begin(), row.tokens.end());
    labels.insert(labels.end(), row.labels.begin(), row.labels.end());
  }
  tensors_["tokens"] = HostTensor::from_doubles(tokens, {batch_, seq_}, Dtype::kInt32);
  tensors_["labels"] = HostTensor::from_doubles(labels, {batch_, seq_}, Dtype::kInt32);
  tensors_.merge(trainer.global_weights("init/"));
  trainer.context().probe = &probe_;
}

void DumpingRun::after_first_step(const StepResult& first) {
  trainer_.context().probe = nullptr;
  const TrainerOptions& options = trainer_.options();
  DumpProbe::GatherNamed gather;
  if (options.gather_activation) {
    gather = [&options](const std::string& name, const HostTensor& mine) {
      ActivationPart part;
      if (options.activation_part) options.activation_part(name, part);
      return options.gather_activation(mine, part);
    };
  }
  if (options.all_names) probe_.add_names(options.all_names(probe_.names()));
  tensors_.merge(probe_.collected(batch_, seq_, gather));
  tensors_.merge(trainer_.global_gradients("grad/"));
  tensors_["loss"] = HostTensor::from_doubles({first.loss}, {1}, Dtype::kFp64);
  tensors_["grad_norm"] = HostTensor::from_doubles({first.grad_norm}, {1}, Dtype::kFp64);
}

const NamedTensors& DumpingRun::finish(const std::vector<double>& step_losses) {
  tensors_.merge(trainer_.global_weights("final/"));
  tensors_["step_loss"] = HostTensor::from_doubles(step_losses, {static_cast<std::int64_t>(step_losses.size())}, Dtype::kFp64);
  return tensors_;
}

}  // namespace ref5d
