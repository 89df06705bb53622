// SPDX-License-Identifier: Apache-2.0
//
// Where the elements of a torch tensor lie, asked through DLPack's exchange API: one call of C for
// a tensor in place of several of Python. A training that saves each step waits for these.
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "varve/device_tensor_source.h"
#include "varve/tensor.h"

namespace varve::python {

// The spans are memory of the tensor. They are good until the caller runs Python.
struct TorchMemory {
  int device = kHost;  // or the number of the GPU that has the memory
  DType dtype = DType::kF32;
  std::span<const int64_t> shape;
  std::span<const int64_t> strides;  // in elements. Empty: the tensor is dense
  std::byte* data = nullptr;

  uint64_t num_bytes() const;  // of a dense tensor
};

// Makes FindTorchMemory know tensors of exactly this type. False: the type has no exchange API, as
// in torch before 2.10.
bool AddTorchType(nanobind::handle type);

// Where FindTorchMemory looks.
enum class TorchPlace { kCpu, kCpuOrGpu };

// Nothing: the tensor is of another type, in another place, or not simply elements in memory. Then
// _arrays.py finds out more, or says what is wrong.
std::optional<TorchMemory> FindTorchMemory(nanobind::handle tensor,
                                           TorchPlace place = TorchPlace::kCpu);

// Keeps the memory alive, even when the tensor gets other memory.
nanobind::object OwnerOfTorchMemory(nanobind::handle tensor);

}  // namespace varve::python
