// One list of cases that together launch every kernel of common/kernels and common/comm: for comparing the kernels of one build
// with another's values, and for timing each against what the machine could do.
//
// A case makes its inputs on the host from seeds of its own, so that they have the same bits in every build, and calls public
// operations on them, each on inputs that no other one has computed: a wrong forward pass does not show in the backward's row.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

#include "common/device/stream.h"
#include "common/tensor/tensor.h"

namespace ref5d {

// kSmall: several warps and several blocks wherever a kernel has them, ragged edges, as little work as that takes.
// kLarge: sizes of a real model, for time.
enum class CaseSize { kSmall, kLarge };

// What a build's value may be compared by: the precision that it was carried in, or its bits.
struct CaseOutput {
  std::string name;
  std::function<Tensor()> tensor;  // asked for after the steps have run
  std::optional<Dtype> precision;  // none: bit by bit
};

// One operation.
struct CaseStep {
  std::string op;
  std::function<void(Stream&)> run;
  // What it costs at least: every input read once and every output written once; of matrix products and attention the flops.
  double bytes = 0, flops = 0;
};

// A case with its inputs on the device.
class PreparedCase {
 public:
  void step(std::string op, std::function<void(Stream&)> run, std::initializer_list<Tensor> read,
            std::initializer_list<Tensor> written, double flops = 0);
  // Compared in its own dtype's precision; an int32 bit by bit.
  void output(const std::string& name, const Tensor& tensor);
  // Compared in this precision: of a value that went through a narrower dtype.
  void output(const std::string& name, const Tensor& tensor, Dtype precision);
  // Compared bit by bit: copies, casts, masks and random numbers.
  void exact_output(const std::string& name, const Tensor& tensor);
  // Of a tensor that the step itself makes.
  void made_output(const std::string& name, std::function<Tensor()> tensor, std::optional<Dtype> precision);

  std::vector<CaseStep> steps;
  std::vector<CaseOutput> outputs;
};

class CaseInputs;

struct KernelCase {
  std::string name;            // "rmsnorm/65x33"
  Dtype dtype = Dtype::kFp32;  // kInt32 where no floating-point tensor takes part
  bool blas = false;           // whether it calls a library's matrix product
  std::function<PreparedCase(CaseInputs&)> prepare;

  // "rmsnorm/65x33/fp32", what the names of its values begin with.
  [[nodiscard]] std::string label() const { return name + "/" + dtype_name(dtype); }
};

// Every case of a size in every dtype, in the order of a list that may grow.
[[nodiscard]] std::vector<KernelCase> kernel_cases(CaseSize size);

struct CaseValue {
  std::string name;  // "rmsnorm/65x33/fp32/y"
  HostTensor value;
  std::optional<Dtype> precision;
};

// What the memory that an operation overwrites holds before. kNan shows an element that nobody wrote; kNothing leaves that to
// a tool that watches memory, which a filled array would keep from seeing it.
enum class CaseFill { kNan, kNothing };

// Runs a case on the compute stream and returns its outputs. Throws what the operations throw.
[[nodiscard]] std::vector<CaseValue> run_case(const KernelCase& one, CaseFill fill = CaseFill::kNan);

}  // namespace ref5d
