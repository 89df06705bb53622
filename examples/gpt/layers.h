// SPDX-License-Identifier: Apache-2.0
//
// The layers of GPT-2, forward and backward, by hand. All tensors are dense and row-major. The
// comment beside each gives its shape: B sequences of T tokens, C channels, NH heads, V words, and
// N = B*T rows. Every backward function *adds* to the gradients it writes, so that a tensor that is
// used twice collects both parts.
//
// Thread rule: pure functions that use all threads of the calling TBB arena. Work is cut into
// blocks of fixed size and every sum has one fixed order, so the bits do not depend on the thread
// count.
//
// Real is float in the trainer, and double in the tests that compare with finite differences.
#pragma once

#include <cstdint>

#include "gpt/topology.h"

namespace gpt {

// Computes out[n] = wte[tokens[n]] + wpe[n % T]. `wte` and `dwte` hold only `words`. Other words
// count as 0. `wpe` may be null, and then nothing is added.
template <typename Real>
void EmbeddingForward(Real* out,              // (N, C)
                      const uint8_t* tokens,  // (N)
                      const Real* wte,        // (words, C)
                      const Real* wpe,        // (T, C)
                      Range words, int64_t B, int64_t T, int64_t C);
template <typename Real>
void EmbeddingBackward(Real* dwte,             // (words, C)
                       Real* dwpe,             // (T, C)
                       const Real* dout,       // (N, C)
                       const uint8_t* tokens,  // (N)
                       Range words, int64_t B, int64_t T, int64_t C);

// Each row of `inp`, shifted to mean 0 and scaled to variance 1, times weight plus bias.
template <typename Real>
void LayerNormForward(Real* out,           // (N, C)
                      Real* mean,          // (N), kept for the backward pass
                      Real* rstd,          // (N), kept for the backward pass
                      const Real* inp,     // (N, C)
                      const Real* weight,  // (C)
                      const Real* bias,    // (C)
                      int64_t N, int64_t C);
template <typename Real>
void LayerNormBackward(Real* dinp,          // (N, C)
                       Real* dweight,       // (C)
                       Real* dbias,         // (C)
                       const Real* dout,    // (N, C)
                       const Real* inp,     // (N, C)
                       const Real* weight,  // (C)
                       const Real* mean,    // (N)
                       const Real* rstd,    // (N)
                       int64_t N, int64_t C);

// out = inp * weight^T + bias. `bias` and `dbias` may be null: then there is none.
template <typename Real>
void LinearForward(Real* out,           // (N, OC)
                   const Real* inp,     // (N, C)
                   const Real* weight,  // (OC, C)
                   const Real* bias,    // (OC)
                   int64_t N, int64_t C, int64_t OC);
template <typename Real>
void LinearBackward(Real* dinp,          // (N, C)
                    Real* dweight,       // (OC, C)
                    Real* dbias,         // (OC)
                    const Real* dout,    // (N, OC)
                    const Real* inp,     // (N, C)
                    const Real* weight,  // (OC, C)
                    int64_t N, int64_t C, int64_t OC);

// Causal multi-head attention. A row of `qkv` holds query, key and value, each with its heads side
// by side.
template <typename Real>
void AttentionForward(Real* out,        // (N, C)
                      Real* att,        // (B, NH, T, T) probabilities, kept for the backward pass
                      const Real* qkv,  // (N, 3C)
                      int64_t B, int64_t T, int64_t C, int64_t NH);
template <typename Real>
void AttentionBackward(Real* dqkv,        // (N, 3C)
                       const Real* dout,  // (N, C)
                       const Real* qkv,   // (N, 3C)
                       const Real* att,   // (B, NH, T, T)
                       int64_t B, int64_t T, int64_t C, int64_t NH);

// GELU, by the tanh approximation that GPT-2 uses. `size` is the number of elements.
template <typename Real>
void GeluForward(Real* out, const Real* inp, int64_t size);
template <typename Real>
void GeluBackward(Real* dinp, const Real* dout, const Real* inp, int64_t size);

// out = a + b
template <typename Real>
void ResidualForward(Real* out, const Real* a, const Real* b, int64_t size);

// losses[n] = -log softmax(logits[n])[targets[n]]
template <typename Real>
void CrossEntropyForward(Real* losses,            // (N)
                         Real* probs,             // (N, V), kept for the backward pass
                         const Real* logits,      // (N, V)
                         const uint8_t* targets,  // (N)
                         int64_t N, int64_t V);
// `dloss` is the gradient of each of the losses: 1/N when the model's loss is their mean.
template <typename Real>
void CrossEntropyBackward(Real* dlogits,           // (N, V)
                          const Real* probs,       // (N, V)
                          const uint8_t* targets,  // (N)
                          Real dloss, int64_t N, int64_t V);

}  // namespace gpt
