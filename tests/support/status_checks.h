// SPDX-License-Identifier: Apache-2.0
//
// Checks of a Status in tests. Each prints the error.
#pragma once

#include <gtest/gtest.h>

#include "varve/status.h"

#define VARVE_ASSERT_OK(expr)                                    \
  do {                                                           \
    const ::varve::Status assert_status = (expr);                \
    ASSERT_TRUE(assert_status.ok()) << assert_status.ToString(); \
  } while (false)
#define VARVE_EXPECT_OK(expr)                                    \
  do {                                                           \
    const ::varve::Status expect_status = (expr);                \
    EXPECT_TRUE(expect_status.ok()) << expect_status.ToString(); \
  } while (false)
