// SPDX-License-Identifier: Apache-2.0
#pragma once

#define VARVE_VERSION_MAJOR 0
#define VARVE_VERSION_MINOR 1
#define VARVE_VERSION_PATCH 0
#define VARVE_VERSION_STRING "0.1.0"
