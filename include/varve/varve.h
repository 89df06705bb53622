// SPDX-License-Identifier: Apache-2.0
//
// Everything a user of varve needs: the store, and the hooks of a trainer.
#pragma once

#include "varve/async_checkpointer.h"
#include "varve/backup.h"
#include "varve/checkpoint.h"
#include "varve/flags.h"
#include "varve/global_names.h"
#include "varve/group.h"
#include "varve/group_checkpointer.h"
#include "varve/history.h"
#include "varve/layouts.h"
#include "varve/load.h"
#include "varve/options.h"
#include "varve/rank_group.h"
#include "varve/request.h"
#include "varve/result.h"
#include "varve/retention.h"
#include "varve/shard_layout.h"
#include "varve/status.h"
#include "varve/step.h"
#include "varve/store.h"
#include "varve/tensor.h"
#include "varve/trainer_hooks.h"
#include "varve/trainer_progress.h"
#include "varve/training_state.h"
#include "varve/version.h"
