# SPDX-License-Identifier: Apache-2.0
"""A small GPT that predicts the next byte of a text. Used by gpt.py, fsdp2.py and bench/peers.py."""

import pathlib

import torch
from torch import nn

VOCABULARY = 256  # bytes


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm_1 = nn.LayerNorm(width)
        self.attention = nn.Linear(width, 3 * width)
        self.projection = nn.Linear(width, width)
        self.norm_2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        parts = self.attention(self.norm_1(x)).view(batch, length, 3, self.heads, -1)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.projection(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(nn.functional.gelu(self.up(self.norm_2(x))))


class GPT(nn.Module):
    def __init__(self, width=64, layers=2, heads=4, context=64):
        super().__init__()
        self.context = context
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.positions = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCABULARY, bias=False)
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens):
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def read_text(path=None):
    """The bytes of a file, or of the pages of this repository, as a tensor."""
    if path is not None:
        data = pathlib.Path(path).read_bytes()
    else:
        root = pathlib.Path(__file__).resolve().parents[2]
        pages = [*sorted((root / "docs").glob("*.md")), root / "README.md"]
        data = b"\n".join(page.read_bytes() for page in pages)
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).long()


def loss_of(model, text, batch, context, rank=0, num_ranks=1):
    """The loss of a rank's share of a random batch, which is drawn from torch's generator."""
    starts = torch.randint(0, len(text) - context - 1, (batch,))[rank::num_ranks]
    rows = torch.stack([text[start : start + context + 1] for start in starts])
    logits = model(rows[:, :-1])
    return nn.functional.cross_entropy(logits.reshape(-1, VOCABULARY), rows[:, 1:].reshape(-1))
