// SPDX-License-Identifier: Apache-2.0
//
// Includes everything that connects a trainer with a store: hooks and flags, asynchronous saves,
// loads, layouts of shards, and communication between ranks (varve/rank_group.h). A tool that only
// reads and writes checkpoints needs varve/store.h alone.
//
// It does not include the headers that need other libraries: varve/cuda.h, varve/mpi_ranks.h,
// varve/nccl_ranks.h, varve/s3.h and varve/rados.h.
#pragma once

#include "varve/async_checkpointer.h"
#include "varve/device_tensor_source.h"
#include "varve/flags.h"
#include "varve/global_names.h"
#include "varve/group_checkpointer.h"
#include "varve/layouts.h"
#include "varve/load.h"
#include "varve/name_map.h"
#include "varve/rank_group.h"
#include "varve/state_item.h"
#include "varve/trainer_hooks.h"
#include "varve/training_state.h"
