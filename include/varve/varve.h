// SPDX-License-Identifier: Apache-2.0
//
// Everything a user of the store needs.
#pragma once

#include "varve/backup.h"
#include "varve/checkpoint.h"
#include "varve/history.h"
#include "varve/options.h"
#include "varve/request.h"
#include "varve/result.h"
#include "varve/retention.h"
#include "varve/status.h"
#include "varve/store.h"
#include "varve/tensor.h"
#include "varve/trainer_state.h"
#include "varve/version.h"
