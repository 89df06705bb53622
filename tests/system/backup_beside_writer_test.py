# SPDX-License-Identifier: Apache-2.0
"""Backups of a store whose writer, another process, saves and drops as fast as it can.

Every copy must check clean, with its data, and be a state that the store had: whole steps that follow
each other. The shipped command has the last word on the last copy.
"""

import argparse
import re
import subprocess
import sys

import harness

COUNTS = re.compile(r"backups (\d+) grown (\d+) copied (\d+) of (\d+) bytes anomalies (\d+)")
WRITTEN = re.compile(r"commits (\d+) seconds ([\d.]+)")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--backups", type=int, default=10)
    options = parser.parse_args()
    with harness.clean_folder() as folder:
        store, copy = folder / "store", folder / "copy"
        churn = harness.program("churn")
        writer = subprocess.Popen(
            [churn, "write", store], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert writer.stdout.readline() == "started\n", "the writer did not start"
        backup = subprocess.run(
            [churn, "backup", store, copy, str(options.backups)],
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        print(backup.stdout, end="")
        assert writer.poll() is None, f"the writer ended by itself with {writer.returncode}"
        commits, seconds = WRITTEN.search(writer.communicate("")[0]).groups()
        assert writer.returncode == 0
        harness.check(store)
        harness.check(copy)
    backups, grown, copied, total, anomalies = map(int, COUNTS.search(backup.stdout).groups())
    print(
        f"{backups} backups beside {int(commits) / float(seconds):.0f} commits/s: "
        f"{grown} saw newer steps, {copied / total:.2f} of all bytes copied, "
        f"{anomalies} anomalies"
    )
    assert anomalies == 0
    # Copies of a store that stands still prove nothing.
    assert grown >= backups / 2, f"only {grown} of {backups} copies had newer steps"
    return 0


if __name__ == "__main__":
    sys.exit(main())
