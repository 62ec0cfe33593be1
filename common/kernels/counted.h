// A kernel's arguments, counted in the bytes ledger as they are handed over: launch<kernel<T>>(..., writes<T>(y), reads<T>(x)).
// The operations that lesson 01 compares, in one kernel and step by step, hand their tensors over this way.
#pragma once

#include "common/device/device.h"
#include "common/tensor/tensor.h"

namespace ref5d {

template <typename T>
[[nodiscard]] const T* reads(const Tensor& t) {
  device().bytes().read(t.bytes());
  return t.data<T>();
}

template <typename T>
[[nodiscard]] T* writes(const Tensor& t) {
  device().bytes().wrote(t.bytes());
  return t.data<T>();
}

// Read, and overwritten in its place.
template <typename T>
[[nodiscard]] T* reads_and_writes(const Tensor& t) {
  device().bytes().read(t.bytes());
  return writes<T>(t);
}

}  // namespace ref5d
