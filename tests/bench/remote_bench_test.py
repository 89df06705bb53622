# SPDX-License-Identifier: Apache-2.0
"""scripts/bench --remote at tiny sizes: every row of both engines is there, and nothing is judged."""

import json
import os
import pathlib
import subprocess
import sys

import harness
import mini_ceph

PROGRAM = pathlib.Path(__file__).parents[2] / "bench/remote.py"
ROWS = [
    "push of a first step",
    "memory of that push",
    "whole restore, by URL into memory",
    "pull to a folder, verified and synced",
    "push of an unchanged step, requests",
    "bytes sent a tensor",
    "open of 20 steps, requests",
    "one tensor after open, bytes",
    "its requests",
    "trainer's slowdown while it pushes",
    "COMMIT of a group",
    "2 trained steps, bytes sent",
    "2 trained steps, bytes stored",
]


def main():
    lacking = mini_ceph.missing() + [p for p in ("torch", "safetensors") if not harness.has(p)]
    if lacking:
        print(f"not run: {' '.join(lacking)} are missing (scripts/setup --object-stores --torch)")
        return harness.SKIPPED
    bin_folder = pathlib.Path(harness.program("varve")).parent
    environment = {**os.environ, "PYTHONPATH": str(bin_folder.parent / "python")}
    with harness.clean_folder() as folder:
        out = folder / "bench.json"
        command = [sys.executable, PROGRAM, "--quick", "--dir", folder / "stores", "--json", out]
        done = subprocess.run(
            [*command, "--bin", bin_folder], env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert list((folder / "stores").iterdir()) == [], "stores are left behind"
        document = json.loads(out.read_text())
    names = [row["what"].strip() for row in document["rows"]]
    assert names == ["S3", *ROWS, "RADOS", *ROWS], names
    # Small sizes prove nothing. What the server counts does not depend on the sizes.
    assert {row["met"] for row in document["rows"]} == {None}, document["rows"]
    verdicts = {row["verdict"] for row in document["rows"]}
    assert verdicts == {"", "not judged", "not built", "for information"}, verdicts
    measured = {row["what"].strip(): row["measured"] for row in document["rows"]}
    assert int(measured["push of an unchanged step, requests"]) <= 4, measured
    return 0


if __name__ == "__main__":
    sys.exit(main())
