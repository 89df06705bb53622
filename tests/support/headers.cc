// SPDX-License-Identifier: Apache-2.0
//
// The target that owns the precompiled headers of all tests needs a source.
