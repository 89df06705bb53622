// SPDX-License-Identifier: Apache-2.0
#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <tuple>
#include <vector>

#include "python/src/bindings.h"
#include "varve/trainer_progress.h"

namespace nb = nanobind;

namespace varve::python {
namespace {

using RngTuple = std::tuple<uint32_t, std::string, nb::bytes>;

std::vector<RngTuple> GetRng(const TrainerProgress& progress) {
  std::vector<RngTuple> all;
  for (const RngState& rng : progress.rng) {
    all.emplace_back(rng.rank, rng.generator, nb::bytes(rng.state.data(), rng.state.size()));
  }
  return all;
}

void SetRng(TrainerProgress* progress, const std::vector<RngTuple>& all) {
  progress->rng.clear();
  for (const auto& [rank, generator, state] : all) {
    const auto* const begin = static_cast<const uint8_t*>(state.data());
    progress->rng.push_back({rank, generator, {begin, begin + state.size()}});
  }
}

}  // namespace

void BindProgress(nb::module_& module) {
  nb::class_<TrainerProgress>(module, "TrainerProgress",
                              "What a trainer remembers besides tensors.")
      .def(nb::init<>())
      .def_rw("global_step", &TrainerProgress::global_step)
      .def_rw("epoch", &TrainerProgress::epoch)
      .def_rw("consumed_samples", &TrainerProgress::consumed_samples)
      .def_rw("best_metric", &TrainerProgress::best_metric)
      .def_rw("last_loss", &TrainerProgress::last_loss)
      .def_rw("lr_scheduler", &TrainerProgress::lr_scheduler)
      .def_rw("loss_scaler", &TrainerProgress::loss_scaler)
      .def_rw("extra", &TrainerProgress::extra)
      .def_prop_rw("rng", GetRng, SetRng, "A list of (rank, generator, state).");
}

}  // namespace varve::python
