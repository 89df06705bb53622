# SPDX-License-Identifier: Apache-2.0
"""Damages a store at random places and looks at it with the shipped command.

Two bytes are flipped, or 64 bytes cut from the end, of one file. The command must say so, or every
bit must still be right; it must never crash, hang, or hand out wrong bytes.
"""

import argparse
import collections
import json
import random
import shutil
import subprocess
import sys

import harness
import numpy
from safetensors.numpy import load_file, save_file

TENSORS = {"layers.0.weight": 600_000, "layers.1.weight": 300_001, "bias": 777}
STEPS = [1, 2, 3]


def make_steps(folder):
    """Files of three steps that share a tensor and drift in the others."""
    rng = numpy.random.default_rng(5)
    tensors = {
        name: rng.standard_normal(size).astype(numpy.float32) for name, size in TENSORS.items()
    }
    files = {}
    for step in STEPS:
        files[step] = folder / f"{step}.safetensors"
        save_file(tensors, files[step])
        tensors["layers.0.weight"] = tensors["layers.0.weight"] * numpy.float32(1.001)
        tensors["bias"] = tensors["bias"] + numpy.float32(1)
    return files


def damage(path, rng):
    data = bytearray(path.read_bytes())
    if rng.random() < 0.3 and len(data) > 64:
        path.write_bytes(data[:-64])
        return f"{path.name} cut by 64 bytes"
    places = [rng.randrange(len(data)) for _ in range(2)]
    for place in places:
        data[place] ^= 1 << rng.randrange(8)
    path.write_bytes(data)
    return f"{path.name} flipped at {places}"


def command(store, *arguments):
    """Runs the shipped command. Returns its exit code and output."""
    done = subprocess.run(
        [harness.program("varve"), "-s", str(store), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert 0 <= done.returncode < 128, f"{arguments} died: {done.returncode}\n{done.stderr}"
    return done.returncode, done.stdout, done.stderr


def judge(store, files, what):
    """Returns whether the damage was seen, or warned of. Fails when wrong bytes come out."""
    code, out, err = command(store, "--json", "check", "--read-data")
    seen = code != 0
    is_warned = not seen and bool(json.loads(out)["warnings"])
    if seen:
        said = " ".join(json.loads(out)["errors"]) if out else err
        assert said.strip(), f"{what}: exit {code} without a word"
    else:
        assert json.loads(out)["ok"]
    for step, file in files.items():
        exported = store / "out.safetensors"
        code, _, err = command(store, "export", step, "-o", exported)
        if code == 0:
            expected, found = load_file(file), load_file(exported)
            assert expected.keys() == found.keys(), f"{what}: step {step} lost tensors"
            for name in expected:
                same = expected[name].tobytes() == found[name].tobytes()
                assert same, f"{what}: step {step}, {name}: wrong bytes were handed out"
            exported.unlink()
        else:
            assert seen, f"{what}: check is content, but export {step} says: {err}"
            assert err.strip(), f"{what}: export exited {code} without a word"
    return seen or is_warned


def expect_chunk_damage_is_named(store, files):
    """A flip inside the largest file, which holds frames, is named by run, step and tensor."""
    largest = max(store.rglob("*.sst"), key=lambda file: file.stat().st_size)
    data = bytearray(largest.read_bytes())
    data[len(data) // 3] ^= 0x10
    largest.write_bytes(data)
    code, out, _ = command(store, "--json", "check", "--read-data")
    assert code == harness.DAMAGED, f"check exited {code} on a flipped frame"
    errors = json.loads(out)["errors"]
    assert any(name in error and "step" in error for name in TENSORS for error in errors), errors
    codes = {command(store, "export", step, "-o", store / "out")[0] for step in files}
    assert harness.DAMAGED in codes, codes


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    rng = random.Random(options.seed)
    outcomes = collections.Counter()
    with harness.clean_folder() as folder:
        files = make_steps(folder)
        good = folder / "good"
        harness.varve(good, "init")
        for step, file in files.items():
            harness.varve(good, "import", file, "--step", step)
        harness.check(good)
        named = folder / "named"
        shutil.copytree(good, named)
        expect_chunk_damage_is_named(named, files)
        victims = sorted(
            file.relative_to(good)
            for file in good.rglob("*")
            if file.is_file() and file.stat().st_size > 0 and file.name != "RESERVE"
        )
        for _ in range(options.rounds):
            bad = folder / "bad"
            shutil.copytree(good, bad)
            victim = rng.choice(victims)
            done = damage(bad / victim, rng)
            kind = "frames and records" if victim.suffix == ".sst" else victim.name.split("-")[0]
            seen = judge(bad, files, f"seed {options.seed}: {done}")
            assert seen or kind != "MANIFEST" or "cut" not in done, f"{done} was not seen"
            outcomes[kind, "seen" if seen else "harmless"] += 1
            shutil.rmtree(bad)
    for (kind, outcome), count in sorted(outcomes.items()):
        print(f"{kind}: {outcome} {count}")
    print(f"{options.rounds} damages, seed {options.seed}: no crash, no wrong byte")
    return 0


if __name__ == "__main__":
    sys.exit(main())
