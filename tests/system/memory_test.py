# SPDX-License-Identifier: Apache-2.0
"""The memory of a save, of an export and of a check, at a state of a given size.

A save may hold the state, which is the trainer's, 256 MiB, and 10 % of the state. `export` and
`check --read-data` know no state and may hold 512 MiB however large it is.
"""

import argparse
import os
import re
import subprocess
import sys

import harness

LINE = re.compile(r"step (\d+) seconds ([\d.]+) stored (\d+) peak (\d+)")


def peak_rss(*command):
    """Runs a command to its end and returns its largest resident memory in bytes."""
    process = subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE)
    process.stdout.read()
    process.stdout.close()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, f"{command} exited {process.returncode}"
    return usage.ru_maxrss << 10


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--mib", type=int, default=512)
    parser.add_argument("--saves", type=int, default=2)
    options = parser.parse_args()
    state = options.mib * harness.MIB
    limit = state + 256 * harness.MIB + state // 10
    faults = []

    def judge(what, peak, most):
        print(f"{what}: peak {peak / harness.MIB:.0f} MiB, limit {most / harness.MIB:.0f} MiB")
        if peak > most:
            faults.append(what)

    with harness.clean_folder() as folder:
        store = folder / "store"
        saves = LINE.findall(harness.run("big_save", store, state, options.saves))
        assert len(saves) == options.saves
        for step, seconds, stored, peak in saves:
            what = f"save {step} of {options.mib} MiB, {int(stored) / harness.MIB:.0f} MiB stored"
            judge(f"{what}, {seconds} s", int(peak), limit)
        command = [harness.program("varve"), "-q", "-s", store]
        judge("check --read-data", peak_rss(*command, "check", "--read-data"), 512 * harness.MIB)
        out = folder / "out.safetensors"
        judge("export", peak_rss(*command, "export", "latest", "-o", out), 512 * harness.MIB)
        assert out.stat().st_size >= state, "the export is not the whole state"
    assert not faults, f"over the limit: {', '.join(faults)}"
    return 0


if __name__ == "__main__":
    sys.exit(main())
