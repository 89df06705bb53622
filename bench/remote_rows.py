# SPDX-License-Identifier: Apache-2.0
"""The rows of bench/remote.py: what was measured, beside the numbers of the design."""

import statistics

from bench_table import row

MIB = 1 << 20
UNCHANGED_TENSORS = 1000


def rate(num_bytes, seconds):
    return f"{num_bytes / seconds / MIB:.0f} MiB/s"


def throughput_row(bench, what, subject, tool, limit=0.8):
    ratio = bench.samples.ratio(tool, subject)
    measured = (
        f"{ratio:.2f} ({rate(bench.moved, bench.samples.median(subject))}, "
        f"{rate(bench.moved, bench.samples.median(tool))})"
    )
    return row(what, f">= {limit} x {bench.engine.tool}", measured, ratio >= limit)


def throughput_rows(bench):
    yield throughput_row(bench, "push of a first step", "push", "tool put")
    peak = bench.samples.median("push peak")
    yield row("  memory of that push", "<= 256 MiB", f"{peak / MIB:.0f} MiB", peak <= 256 * MIB)
    yield throughput_row(bench, "whole restore, by URL into memory", "load", "tool get")
    yield throughput_row(bench, "  pull to a folder, verified and synced", "pull", "tool get")


def unchanged_rows(bench):
    same = [statistics.median(values) for values in zip(*bench.same, strict=True)]
    yield row("push of an unchanged step, requests", "<= 4", f"{same[0]:.0f}", same[0] <= 4)
    a_tensor = same[1] / UNCHANGED_TENSORS
    measured = f"{a_tensor:.0f} of {UNCHANGED_TENSORS} tensors"
    yield row("  bytes sent a tensor", "<= 200", measured, a_tensor <= 200)


def open_rows(bench):
    found = bench.opened
    yield row(
        f"open of {bench.options.steps:,} steps, requests",
        "<= 20",
        f"{found.requests} ({found.fetched / 1e3:.0f} KB)",
        found.requests <= 20,
    )


def one_tensor_rows(bench):
    num_bytes, frames, found = bench.one
    ratio = found.fetched / frames
    yield row(
        "one tensor after open, bytes",
        "<= 1.2 x its frames",
        f"{ratio:.2f} ({frames / MIB:.2f} MiB of {num_bytes / MIB:.2f})",
        ratio <= 1.2,
    )
    what = "  its requests"
    yield row(what, "<= 3: a blob + 2", f"{found.requests}", found.requests <= 3)


def slowdown_rows(bench):
    samples = bench.samples
    slower = samples.ratio("step pushed", "step alone") - 1
    yield row(
        "trainer's slowdown while it pushes",
        "<= 3 %",
        f"{100 * slower:+.1f} % (steps of {samples.median('step alone'):.2f} s, "
        f"pushes of {samples.median('push seconds'):.2f} s)",
        slower <= 0.03,
    )
    yield row("COMMIT of a group", "<= 5 ms on RADOS", "-", verdict="not built")


def trained_rows(bench):
    steps, files = bench.options.train_steps, bench.files
    for what, found in (("sent", bench.varve_sent), ("stored", bench.stored)):
        yield row(
            f"{steps} trained steps, bytes {what}",
            "no target",
            f"{found / files:.3f} of safetensors sent with {bench.engine.tool} "
            f"({found / MIB:.0f} of {files / MIB:.0f} MiB)",
            verdict="for information",
        )


# What a Bench measures, and the rows of it.
PARTS = {
    "throughput": throughput_rows,
    "unchanged": unchanged_rows,
    "many_steps": open_rows,
    "one_tensor": one_tensor_rows,
    "slowdown": slowdown_rows,
    "trained": trained_rows,
}
