// SPDX-License-Identifier: Apache-2.0
//
// The memory that saves of a state need, taken before they begin: staging on the host, and what its
// devices need. Thread rule: one thread, while no save is under way.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "trainer_hooks/save/device_places.h"
#include "trainer_hooks/save/staging_memory.h"
#include "trainer_hooks/state/save_state.h"
#include "varve/device_tensor_source.h"

namespace varve::internal {

class SaveMemory {
 public:
  // `budget_bytes` as CheckpointerOptions::staging_budget_bytes; `devices` may be null.
  SaveMemory(uint64_t budget_bytes, std::shared_ptr<DeviceTensorSource> devices)
      : budget_bytes_(budget_bytes), devices_(std::move(devices)) {}

  // Gets it ready for a state, and makes it empty; does little when that lies where the last
  // one lay. kInvalidArgument names a tensor that is not on its device.
  Status Fit(const std::shared_ptr<const SaveState>& state);
  // As Fit, with all pages from the system.
  Status Prewarm(const std::shared_ptr<const SaveState>& state);
  // Gives all pages back.
  Status Release();

  StagingMemory* staging() { return &staging_; }
  DeviceTensorSource* devices() const { return devices_.get(); }
  // Of the state of the last Fit: some tensors are on devices.
  bool is_on_devices() const { return !places_.empty(); }

 private:
  Status SizeStaging(const TrainingState& state);
  Status PrepareDevices(const std::shared_ptr<const SaveState>& state);
  Status Unpin();

  const uint64_t budget_bytes_;
  const std::shared_ptr<DeviceTensorSource> devices_;
  uint64_t wanted_bytes_ = 0;  // for the largest state so far
  StagingMemory staging_;
  DevicePlaces places_;  // that devices are prepared for
  bool is_prepared_ = false;
};

}  // namespace varve::internal
