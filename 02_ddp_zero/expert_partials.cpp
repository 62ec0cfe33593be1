#include "02_ddp_zero/expert_partials.h"

namespace ref5d::data_parallel {

ExpertPartials::ExpertPartials(const std::vector<OptimizerState>& states, const Tensor& partials) {
  std::int64_t at = 0, begin = 0;  // of a stretch of experts
  for (std::size_t i = 0; i < states.size(); ++i) {
    at += states[i].partials.numel();
    if (!states[i].parameter->expert) {
      begin = at;
    } else if (i + 1 == states.size() || !states[i + 1].parameter->expert) {
      stretches_.push_back(partials.rows(begin, at));
      numel_ += at - begin;
    }
  }
}

Tensor ExpertPartials::joined(Stream& stream) const {
  const Tensor all = Tensor::empty({numel_}, Dtype::kFp64, MemoryCategory::kCommunication, stream);
  std::int64_t at = 0;
  for (const Tensor& s : stretches_) {
    copy_on_device(stream, all.rows(at, at + s.numel()).raw(), s.raw(), s.bytes());
    at += s.numel();
  }
  return all;
}

void ExpertPartials::replace(Stream& stream, const Tensor& joined) const {
  std::int64_t at = 0;
  for (const Tensor& s : stretches_) {
    copy_on_device(stream, s.raw(), joined.rows(at, at + s.numel()).raw(), s.bytes());
    at += s.numel();
  }
}

}  // namespace ref5d::data_parallel
