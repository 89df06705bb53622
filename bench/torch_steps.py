# SPDX-License-Identifier: Apache-2.0
"""Writes the state of torch.optim.AdamW and Adam after two consecutive steps, for codec_bench.

torch_steps.py FOLDER: each implementation of each optimizer on the processor, with gradients of FP32 and of
BF16. Gradients and weights are normally distributed, so only the prediction is of interest, not the ratio.
"""

import pathlib
import sys

import torch
from safetensors.torch import save_file

NUM_ELEMENTS = 400_000
STEPS = 20
OPTIONS = {"lr": 3e-4, "betas": (0.9, 0.95), "eps": 1e-8}
IMPLEMENTATIONS = {
    "loop": {"foreach": False, "fused": False},
    "foreach": {"foreach": True},
    "fused": {"fused": True},
}


def save(path, parameter, optimizer, step):
    state = optimizer.state[parameter]
    group = optimizer.param_groups[0]
    metadata = {
        "step": step,
        "lr": group["lr"],
        "beta1": group["betas"][0],
        "beta2": group["betas"][1],
        "eps": group["eps"],
        "weight_decay": group["weight_decay"],
        "clip_factor": 1,
    }
    tensors = {
        "master.weight": parameter.detach(),
        "model.weight": parameter.detach().to(torch.bfloat16),
        "exp_avg.weight": state["exp_avg"],
        "exp_avg_sq.weight": state["exp_avg_sq"],
    }
    save_file(tensors, path, metadata={name: str(value) for name, value in metadata.items()})


def train(folder, name, optimizer_class, gradient_dtype, **options):
    torch.manual_seed(1)
    parameter = torch.nn.Parameter(torch.randn(NUM_ELEMENTS) * 0.02)
    optimizer = optimizer_class([parameter], **OPTIONS, **options)
    for step in range(1, STEPS + 2):
        gradient = torch.randn(NUM_ELEMENTS) * 0.003
        parameter.grad = gradient.to(gradient_dtype).float()
        optimizer.step()
        if step >= STEPS:
            save(folder / f"{name}+00{step - STEPS}.safetensors", parameter, optimizer, step)


def main():
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for implementation, how in IMPLEMENTATIONS.items():
        for dtype_name, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
            name = f"{implementation}_{dtype_name}"
            train(folder, f"adamw_{name}", torch.optim.AdamW, dtype, weight_decay=0.1, **how)
            train(folder, f"adam_{name}", torch.optim.Adam, dtype, **how)
    print(f"torch {torch.__version__}: {2 * 2 * len(IMPLEMENTATIONS)} pairs of steps in {folder}")


if __name__ == "__main__":
    main()
