# SPDX-License-Identifier: Apache-2.0
"""Readers in other processes beside a writer that saves and drops as fast as it can.

Each reader opens the store anew and reads the newest step whole; one more keeps its store open. Only
whole steps may be seen, and no healthy store may be called damaged.
"""

import argparse
import re
import subprocess
import sys

import harness

COUNTS = re.compile(r"opens (\d+) whole (\d+) vanished (\d+) anomalies (\d+)")
WRITTEN = re.compile(r"commits (\d+) seconds ([\d.]+)")


def start(*arguments, **pipes):
    command = [harness.program("churn"), *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **pipes)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--opens", type=int, default=200)
    parser.add_argument("--readers", type=int, default=2)
    parser.add_argument("--min-commits-per-second", type=float, default=0)
    options = parser.parse_args()
    with harness.clean_folder() as folder:
        store = folder / "store"
        writer = start("write", store, stdin=subprocess.PIPE)
        assert writer.stdout.readline() == "started\n", "the writer did not start"
        each = -(-options.opens // options.readers)
        readers = [start("open", store, each) for _ in range(options.readers)]
        readers.append(start("follow", store, options.opens))
        outputs = [reader.communicate()[0] for reader in readers]
        assert writer.poll() is None, f"the writer ended by itself with {writer.returncode}"
        commits, seconds = WRITTEN.search(writer.communicate("")[0]).groups()
        assert writer.returncode == 0
        harness.check(store)
    rate = int(commits) / float(seconds)
    opened = whole = vanished = anomalies = 0
    for reader, output in zip(readers, outputs, strict=False):
        assert reader.returncode == 0, output
        print(output, end="")
        counts = [int(count) for count in COUNTS.search(output).groups()]
        # A reader that hardly ever saw a step proves nothing.
        assert counts[1] >= counts[0] / 2, f"only {counts[1]} of {counts[0]} steps could be read"
        opened, whole = opened + counts[0], whole + counts[1]
        vanished, anomalies = vanished + counts[2], anomalies + counts[3]
    print(
        f"{each * options.readers} opens and {options.opens} looks of an open reader beside "
        f"{rate:.0f} commits/s: {whole} whole steps, {vanished} dropped meanwhile, "
        f"{anomalies} anomalies"
    )
    assert anomalies == 0
    assert rate >= options.min_commits_per_second, f"only {rate:.1f} commits/s"
    return 0


if __name__ == "__main__":
    sys.exit(main())
