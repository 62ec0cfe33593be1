// From a run-time dtype to a compile-time type: dispatch(dtype, [&]<typename T>() { launch<kernel<T>>(...); }).
#pragma once

#include <stdexcept>

#include "common/device/bf16.h"
#include "common/tensor/dtype.h"

namespace ref5d {

template <typename F>
void dispatch(Dtype dtype, F&& f) {
  switch (dtype) {
    case Dtype::kFp64: return f.template operator()<double>();
    case Dtype::kFp32: return f.template operator()<float>();
    case Dtype::kBf16: return f.template operator()<bf16>();
    case Dtype::kInt32: break;
  }
  throw std::logic_error("this operation is for floating-point tensors");
}

// The same for a pair of an element type T and a type O that may be T or its accumulator.
template <typename F>
void dispatch_with_output(Dtype dtype, Dtype output, F&& f) {
  if (output == dtype) {
    dispatch(dtype, [&]<typename T>() { f.template operator()<T, T>(); });
  } else if (dtype == Dtype::kBf16 && output == Dtype::kFp32) {
    f.template operator()<bf16, float>();
  } else {
    throw std::logic_error("the output is neither of the inputs' dtype nor of their accumulator's");
  }
}

}  // namespace ref5d
