// SPDX-License-Identifier: Apache-2.0
//
// Includes the store, the hooks of a trainer, groups, requests, repair, seals and object stores.
// The headers that need other libraries are not included: varve/cuda.h, mpi_ranks.h, nccl_ranks.h,
// s3.h and rados.h. varve/c.h is for C.
#pragma once

#include "varve/group.h"
#include "varve/hooks.h"
#include "varve/remote.h"
#include "varve/repair.h"
#include "varve/request.h"
#include "varve/seal.h"
#include "varve/store.h"
