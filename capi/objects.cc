// SPDX-License-Identifier: Apache-2.0
#include "capi/objects.h"

#include <chrono>
#include <utility>

#include "capi/arguments.h"

namespace varve::internal::capi {

StepText::StepText(CheckpointInfo info) : info_(std::move(info)) {
  for (const auto& [name, value] : info_.metrics) metrics_.push_back({name.c_str(), value});
  for (const std::string& tag : info_.tags) tags_.push_back(tag.c_str());
}

varve_step_info StepText::View() const {
  const auto created = info_.created.time_since_epoch();
  return {.struct_size = sizeof(varve_step_info),
          .run = info_.id.run.c_str(),
          .step = info_.id.step,
          .created_us = std::chrono::duration_cast<std::chrono::microseconds>(created).count(),
          .num_tensors = info_.num_tensors,
          .logical_bytes = info_.logical_bytes,
          .new_bytes = info_.new_bytes,
          .stored_bytes = info_.stored_bytes,
          .num_metrics = metrics_.size(),
          .metrics = metrics_.data(),
          .num_tags = tags_.size(),
          .tags = tags_.data()};
}

Result<TensorArgument> ReadTensor(const varve_tensor* tensor) {
  constexpr size_t kMostAxes = 255;  // more is a number that was never set
  varve_tensor given;
  VARVE_RETURN_IF_ERROR(ReadStruct("varve_tensor", tensor, &given));
  VARVE_RETURN_IF_ERROR(RequirePointer("name of the tensor", given.name));
  const std::string what = "tensor " + std::string(given.name);
  VARVE_RETURN_IF_ERROR(CheckConstant((what + ": dtype").c_str(), given.dtype, kNumDTypes - 1));
  VARVE_RETURN_IF_ERROR(CheckConstant((what + ": role").c_str(), given.role, kNumTensorRoles - 1));
  if (given.num_axes > kMostAxes) {
    return Status::InvalidArgument(what + ": num_axes is " + std::to_string(given.num_axes) +
                                   ", expected at most " + std::to_string(kMostAxes));
  }
  TensorArgument read;
  if (given.num_axes > 0) {
    VARVE_RETURN_IF_ERROR(RequirePointer((what + ": shape").c_str(), given.shape));
    read.spec.shape.assign(given.shape, given.shape + given.num_axes);
    if (given.strides != nullptr) {
      read.strides.assign(given.strides, given.strides + given.num_axes);
    }
  }
  read.spec.name = given.name;
  read.spec.dtype = static_cast<DType>(given.dtype);
  read.spec.role = static_cast<TensorRole>(given.role);
  if (given.derived_from != nullptr) read.spec.derived_from = given.derived_from;
  read.data = given.data;
  return read;
}

Status ReadProgress(const varve_progress* from, TrainerProgress* to) {
  varve_progress given;
  VARVE_RETURN_IF_ERROR(ReadStruct("varve_progress", from, &given));
  to->global_step = given.global_step;
  to->epoch = given.epoch;
  to->consumed_samples = given.consumed_samples;
  to->best_metric = given.best_metric;
  to->last_loss = given.last_loss;
  return Status::Ok();
}

varve_progress ViewProgress(const TrainerProgress& progress) {
  return {.struct_size = sizeof(varve_progress),
          .global_step = progress.global_step,
          .epoch = progress.epoch,
          .consumed_samples = progress.consumed_samples,
          .best_metric = progress.best_metric,
          .last_loss = progress.last_loss};
}

}  // namespace varve::internal::capi
