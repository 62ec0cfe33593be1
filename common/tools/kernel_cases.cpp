#include "common/tools/kernel_cases.h"

#include <utility>

#include "common/device/device.h"
#include "common/tools/kernel_inputs.h"

namespace ref5d {
namespace {

std::optional<Dtype> own_precision(const Tensor& tensor) {
  if (tensor.dtype() == Dtype::kInt32) return std::nullopt;
  return tensor.dtype();
}

}  // namespace

void PreparedCase::step(std::string op, std::function<void(Stream&)> run, std::initializer_list<Tensor> read,
                        std::initializer_list<Tensor> written, double flops) {
  CaseStep one{std::move(op), std::move(run), 0, flops};
  for (const auto& tensors : {read, written}) {
    for (const Tensor& tensor : tensors) one.bytes += static_cast<double>(tensor.bytes());
  }
  steps.push_back(std::move(one));
}

void PreparedCase::output(const std::string& name, const Tensor& tensor) {
  made_output(
      name, [tensor] { return tensor; }, own_precision(tensor));
}
void PreparedCase::output(const std::string& name, const Tensor& tensor, Dtype precision) {
  made_output(
      name, [tensor] { return tensor; }, precision);
}
void PreparedCase::exact_output(const std::string& name, const Tensor& tensor) {
  made_output(
      name, [tensor] { return tensor; }, std::nullopt);
}
void PreparedCase::made_output(const std::string& name, std::function<Tensor()> tensor, std::optional<Dtype> precision) {
  outputs.push_back({name, std::move(tensor), precision});
}

void add_case(CaseList& list, const std::string& name, const std::function<PreparedCase(CaseInputs&)>& prepare) {
  for (const Dtype dtype : {Dtype::kFp64, Dtype::kFp32, Dtype::kBf16}) list.push_back({name, dtype, false, prepare});
}

std::vector<KernelCase> kernel_cases(CaseSize size) {
  CaseList list;
  add_row_cases(list, size);
  add_token_cases(list, size);
  add_elementwise_cases(list, size);
  add_gemm_cases(list, size);
  add_attention_cases(list, size);
  add_router_cases(list, size);
  add_expert_cases(list, size);
  add_moe_part_cases(list, size);
  return list;
}

std::vector<CaseValue> run_case(const KernelCase& one, CaseFill fill) {
  Stream& stream = device().compute();
  CaseInputs inputs(one, fill);
  const PreparedCase prepared = one.prepare(inputs);
  for (const CaseStep& step : prepared.steps) step.run(stream);
  std::vector<CaseValue> values;
  for (const CaseOutput& output : prepared.outputs)
    values.push_back({one.label() + "/" + output.name, output.tensor().to_host(stream), output.precision});
  return values;
}

}  // namespace ref5d
