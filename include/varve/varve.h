// SPDX-License-Identifier: Apache-2.0
//
// Everything a user of the store needs.
#pragma once

#include "varve/checkpoint.h"
#include "varve/options.h"
#include "varve/result.h"
#include "varve/status.h"
#include "varve/store.h"
#include "varve/tensor.h"
#include "varve/trainer_state.h"
#include "varve/version.h"
