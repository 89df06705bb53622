// SPDX-License-Identifier: Apache-2.0
//
// Checks of a Status in tests. Each prints the error. They copy what `expr` refers to, because the
// status of a temporary result would be gone.
#pragma once

#include <gtest/gtest.h>

#include "varve/status.h"

#define VARVE_ASSERT_OK(expr)                                    \
  do {                                                           \
    const auto& assert_status = ::varve::Status(expr);           \
    ASSERT_TRUE(assert_status.ok()) << assert_status.ToString(); \
  } while (false)
#define VARVE_EXPECT_OK(expr)                                    \
  do {                                                           \
    const auto& expect_status = ::varve::Status(expr);           \
    EXPECT_TRUE(expect_status.ok()) << expect_status.ToString(); \
  } while (false)
