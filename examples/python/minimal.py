# SPDX-License-Identifier: Apache-2.0
"""A training loop that saves each step, and goes on where it was when it is started again.

python minimal.py FOLDER [STEPS]
"""

import sys

import numpy as np
import varve


def train(folder, steps):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((64, 5000), dtype=np.float32)
    y = rng.standard_normal(64, dtype=np.float32)
    state = {"w": np.zeros(5000, np.float32), "momentum": np.zeros(5000, np.float32)}

    with varve.open(folder, "a") as store:
        first = 0
        if "latest" in store:
            last = store["latest"]
            last.load(out=state)  # into the arrays of the state
            first = last.step + 1
        for step in range(first, steps):
            error = (x * state["w"]).sum(axis=1) - y
            state["momentum"] *= 0.9
            state["momentum"] += (x * error[:, None]).mean(axis=0)
            state["w"] -= 0.002 * state["momentum"]
            loss = float((error**2).mean())
            store.save(step, state, metrics={"loss": loss})  # durable when it returns
            print(f"step {step} loss {loss!r}", flush=True)


if __name__ == "__main__":
    train(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 40)
