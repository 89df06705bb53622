// SPDX-License-Identifier: Apache-2.0
//
// Includes everything that a user of varve needs: the store, and the hooks of a trainer.
#pragma once

#include "varve/group.h"
#include "varve/hooks.h"
#include "varve/remote.h"
#include "varve/repair.h"
#include "varve/request.h"
#include "varve/store.h"
