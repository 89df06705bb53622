// SPDX-License-Identifier: Apache-2.0
//
// Holds the memory that saves of a state need: staging on the host, and what its devices need. It
// is taken before a save starts. Thread rule: one thread, while no save is in progress.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "trainer_hooks/save/stage_layout.h"
#include "trainer_hooks/save/staging_memory.h"
#include "varve/device_tensor_source.h"

namespace varve::internal {

class SaveMemory {
 public:
  // `budget_bytes` is CheckpointerOptions::staging_budget_bytes. `devices` may be null.
  SaveMemory(uint64_t budget_bytes, std::shared_ptr<DeviceTensorSource> devices)
      : budget_bytes_(budget_bytes), devices_(std::move(devices)) {}

  // Gets the memory ready for a state with these tensors, and makes it empty. If they are those of
  // the last call, it does nothing more. kInvalidArgument names a tensor that is not on its device.
  Status Fit(const std::shared_ptr<const StateTensors>& tensors);
  // Does what Fit does, and takes all pages from the system.
  Status Prewarm(const std::shared_ptr<const StateTensors>& tensors);
  // Gives all pages back.
  Status Release();

  StagingMemory* staging() { return &staging_; }
  DeviceTensorSource* devices() const { return devices_.get(); }
  // Returns the layout of the tensors of the last Fit. Null: there was none.
  const std::shared_ptr<const StageLayout>& layout() const { return layout_; }
  bool is_on_devices() const { return layout_ != nullptr && layout_->num_on_devices() > 0; }

 private:
  Status FitLayout(const std::shared_ptr<const StateTensors>& tensors);
  Status SizeStaging(std::span<const StateTensor> tensors);
  Status PrepareDevices(const StageLayout& layout);
  Status Unpin();

  const uint64_t budget_bytes_;
  const std::shared_ptr<DeviceTensorSource> devices_;
  uint64_t wanted_bytes_ = 0;  // for the largest state so far
  StagingMemory staging_;
  std::shared_ptr<const StageLayout> layout_;  // that all is ready for
  bool is_prepared_ = false;                   // devices have memory for some layout
};

}  // namespace varve::internal
