// SPDX-License-Identifier: Apache-2.0
#include "store/format/trainer_progress.h"

#include <flatbuffers/flatbuffers.h>

#include "store/format/verified_buffer.h"
#include "store/schema/trainer_state_generated.h"

namespace varve::internal {

namespace {

using flatbuffers::FlatBufferBuilder;
using flatbuffers::Offset;
using flatbuffers::Vector;
using Settings = std::map<std::string, StateValue>;
using FbSettings = Vector<Offset<fb::Value>>;

Offset<fb::Value> EncodeValue(FlatBufferBuilder* builder, const std::string& name,
                              const StateValue& value) {
  const auto name_offset = builder->CreateString(name);
  Offset<flatbuffers::String> text;
  Offset<Vector<double>> reals;
  if (const auto* s = std::get_if<std::string>(&value)) text = builder->CreateString(*s);
  if (const auto* v = std::get_if<std::vector<double>>(&value)) reals = builder->CreateVector(*v);
  fb::ValueBuilder out(*builder);
  out.add_name(name_offset);
  out.add_kind(static_cast<fb::ValueKind>(value.index()));
  if (const auto* i = std::get_if<int64_t>(&value)) out.add_integer(*i);
  if (const auto* d = std::get_if<double>(&value)) out.add_real(*d);
  if (!text.IsNull()) out.add_text(text);
  if (!reals.IsNull()) out.add_reals(reals);
  return out.Finish();
}

Offset<FbSettings> EncodeSettings(FlatBufferBuilder* builder, const Settings& settings) {
  std::vector<Offset<fb::Value>> values;
  for (const auto& [name, value] : settings) values.push_back(EncodeValue(builder, name, value));
  return builder->CreateVector(values);
}

Result<StateValue> DecodeValue(const fb::Value& in) {
  switch (in.kind()) {
    case fb::ValueKind::kInteger:
      return StateValue(in.integer());
    case fb::ValueKind::kReal:
      return StateValue(in.real());
    case fb::ValueKind::kText:
      return StateValue(in.text() == nullptr ? std::string() : in.text()->str());
    case fb::ValueKind::kReals: {
      if (!AreAligned(in.reals())) {
        return Status::Corruption("trainer state: the numbers of " + in.name()->str() +
                                  " are not aligned");
      }
      std::vector<double> reals;
      if (in.reals() != nullptr) reals.assign(in.reals()->begin(), in.reals()->end());
      return StateValue(std::move(reals));
    }
  }
  return Status::Corruption("trainer state: the kind of " + in.name()->str() + " is " +
                            std::to_string(static_cast<int>(in.kind())) + ", expected at most 3");
}

Status DecodeSettings(const FbSettings* in, Settings* out) {
  if (in == nullptr) return Status::Ok();
  for (const fb::Value* value : *in) {
    VARVE_ASSIGN_OR_RETURN((*out)[value->name()->str()], DecodeValue(*value));
  }
  return Status::Ok();
}

std::string Finished(const FlatBufferBuilder& builder) {
  return {reinterpret_cast<const char*>(builder.GetBufferPointer()), builder.GetSize()};
}

}  // namespace

std::string EncodeTrainerProgress(const TrainerProgress& state) {
  FlatBufferBuilder builder;
  builder.ForceDefaults(true);  // a double equal to its default, -0.0 say, keeps its bits
  const auto lr_scheduler = EncodeSettings(&builder, state.lr_scheduler);
  const auto loss_scaler = EncodeSettings(&builder, state.loss_scaler);
  const auto extra = EncodeSettings(&builder, state.extra);
  std::vector<Offset<fb::RngState>> rng;
  for (const RngState& r : state.rng) {
    const auto generator = builder.CreateString(r.generator);
    const auto bytes = builder.CreateVector(r.state);
    rng.push_back(fb::CreateRngState(builder, r.rank, generator, bytes));
  }
  const auto rng_offset = builder.CreateVector(rng);
  builder.Finish(fb::CreateTrainerState(builder, state.global_step, state.epoch,
                                        state.consumed_samples, state.best_metric, state.last_loss,
                                        lr_scheduler, loss_scaler, rng_offset, extra));
  return Finished(builder);
}

Result<TrainerProgress> DecodeTrainerProgress(std::string_view value) {
  const VerifiedBuffer<fb::TrainerState> buffer(value);
  const auto* in = buffer.root();
  if (in == nullptr) return Status::Corruption("trainer state: not a well-formed flatbuffer");
  TrainerProgress out;
  out.global_step = in->global_step();
  out.epoch = in->epoch();
  out.consumed_samples = in->consumed_samples();
  out.best_metric = in->best_metric();
  out.last_loss = in->last_loss();
  VARVE_RETURN_IF_ERROR(DecodeSettings(in->lr_scheduler(), &out.lr_scheduler));
  VARVE_RETURN_IF_ERROR(DecodeSettings(in->loss_scaler(), &out.loss_scaler));
  VARVE_RETURN_IF_ERROR(DecodeSettings(in->extra(), &out.extra));
  if (in->rng() != nullptr) {
    for (const fb::RngState* r : *in->rng()) {
      RngState& state = out.rng.emplace_back();
      state.rank = r->rank();
      if (r->generator() != nullptr) state.generator = r->generator()->str();
      if (r->state() != nullptr) state.state.assign(r->state()->begin(), r->state()->end());
    }
  }
  return out;
}

std::string EncodeTopology(const Topology& t) {
  FlatBufferBuilder builder;
  const auto rank_order = builder.CreateString(t.rank_order);
  builder.Finish(fb::CreateTopology(builder, t.dp, t.tp, t.pp, t.vpp, t.sp, t.cp, t.ep,
                                    t.zero_stage, t.world_size, rank_order));
  return Finished(builder);
}

Result<Topology> DecodeTopology(std::string_view value) {
  const VerifiedBuffer<fb::Topology> buffer(value);
  const auto* in = buffer.root();
  if (in == nullptr) return Status::Corruption("topology: not a well-formed flatbuffer");
  Topology out{.dp = in->dp(),
               .tp = in->tp(),
               .pp = in->pp(),
               .vpp = in->vpp(),
               .sp = in->sp(),
               .cp = in->cp(),
               .ep = in->ep(),
               .zero_stage = in->zero_stage(),
               .world_size = in->world_size()};
  if (in->rank_order() != nullptr) out.rank_order = in->rank_order()->str();
  return out;
}

}  // namespace varve::internal
