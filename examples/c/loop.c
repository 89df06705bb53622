/* SPDX-License-Identifier: Apache-2.0
 *
 * A trainer in C that saves and resumes. It is minimal_loop.cc with a variable of its own and
 * flags.
 *
 *   loop 60 --save ckpt --save-interval 10 --load ckpt     trains to step 60
 *   loop 100 --save ckpt --save-interval 10 --load ckpt    goes on at step 61
 */
#include <stdio.h>
#include <stdlib.h>

#include "varve/c.h"

enum { kSize = 1000 };

typedef struct {
  float weights[kSize];
  float momentum[kSize];
  long long samples; /* an item: saved when a save is due, filled by a load */
} Model;

/* Moves the weights to 1, 2, 3 ... by gradient descent with momentum. */
static void optimizer_step(Model* model) {
  int i;
  for (i = 0; i < kSize; ++i) {
    const float gradient = model->weights[i] - (float)(i + 1);
    model->momentum[i] = 0.9f * model->momentum[i] + gradient;
    model->weights[i] -= 0.01f * model->momentum[i];
  }
  model->samples += 32;
}

static varve_status describe(Model* model, varve_state* state) {
  const int64_t shape[1] = {kSize};
  varve_tensor tensor = {sizeof(varve_tensor), 0, 0, 0, 0, 0, 0, 0, 0};
  varve_item item = {sizeof(varve_item), 0, 0, 0, 0};
  varve_status status;
  tensor.name = "model.weights";
  tensor.dtype = VARVE_F32;
  tensor.role = VARVE_PARAMETER;
  tensor.num_axes = 1;
  tensor.shape = shape;
  tensor.data = model->weights;
  status = varve_state_add_tensor(state, &tensor);
  if (status != VARVE_OK) return status;
  tensor.name = "momentum.weights";
  tensor.role = VARVE_OPTIMIZER;
  tensor.data = model->momentum;
  status = varve_state_add_tensor(state, &tensor);
  if (status != VARVE_OK) return status;
  item.name = "samples";
  item.data = &model->samples;
  item.capacity = sizeof(model->samples);
  return varve_state_add_item(state, &item);
}

static varve_status train(int64_t last, Model* model, varve_state* state, varve_hooks* hooks) {
  varve_progress progress = {sizeof(varve_progress), 0, 0, 0, 0, 0};
  int stop = 0;
  varve_status status = varve_state_get_progress(state, &progress);
  while (status == VARVE_OK && !stop && progress.global_step < last) {
    const int64_t step = ++progress.global_step;
    status = varve_hooks_before_optimizer_step(hooks);
    if (status != VARVE_OK) break;
    optimizer_step(model);
    status = varve_hooks_after_step(hooks, step, step == last, &stop);
  }
  if (status == VARVE_OK) status = varve_hooks_finish(hooks); /* the last save is durable */
  printf("step %ld: the last weight is %a, %lld samples\n", (long)progress.global_step,
         (double)model->weights[kSize - 1], model->samples);
  return status;
}

int main(int argc, char** argv) {
  static Model model; /* zeros */
  varve_flags* flags = NULL;
  varve_state* state = NULL;
  varve_hooks* hooks = NULL;
  int code = 1;
  if (varve_flags_create(&flags) == VARVE_OK && varve_flags_take(flags, &argc, argv) == VARVE_OK) {
    if (argc != 2) {
      fprintf(stderr, "usage: %s STEPS [FLAGS]\n%s", argv[0], varve_flags_help());
      code = 2;
    } else if (varve_state_create(&state) == VARVE_OK && describe(&model, state) == VARVE_OK &&
               varve_hooks_start(flags, state, NULL, &hooks) == VARVE_OK &&
               train(atol(argv[1]), &model, state, hooks) == VARVE_OK &&
               varve_hooks_stop_reason(hooks, NULL, &code) == VARVE_OK) {
      /* 0, or 75 when a signal has stopped the training */
    }
  }
  if (code == 1) fprintf(stderr, "%s\n", varve_last_error());
  varve_hooks_close(hooks);
  varve_state_close(state);
  varve_flags_close(flags);
  return code;
}
