# SPDX-License-Identifier: Apache-2.0
"""Trains a small GPT on real text in one process. Started again, it goes on where it was, bit for bit.

python gpt.py FOLDER [--steps N] [--text FILE]
"""

import argparse
import signal

import torch
import varve
from gpt_model import GPT, loss_of, read_text


def train(folder, num_steps, text):
    torch.manual_seed(0)
    model = GPT()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, 1.0, total_iters=20)
    with varve.torch.Checkpointer(
        folder, save_every=10, keep_last=2, keep_best="loss:1", stop_signals=[signal.SIGTERM]
    ) as ckpt:
        start = ckpt.restore(model=model, optimizer=optimizer, scheduler=scheduler)
        for step in range(0 if start is None else start + 1, num_steps):
            loss = loss_of(model, text, 16, model.context)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            print(f"step {step} loss {loss.item()!r}", flush=True)
            if ckpt.after_step(step, metrics={"loss": loss.item()}):
                break


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--text", help="a file of text. Without it, the pages of this repository")
    options = parser.parse_args()
    train(options.folder, options.steps, read_text(options.text))
