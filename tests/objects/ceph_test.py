# SPDX-License-Identifier: Apache-2.0
"""Runs the conformance suite of object stores on a real Ceph, which it starts and ends."""

import os
import re
import subprocess
import sys
import time

import harness
import mini_ceph


def main():
    lacking = mini_ceph.missing()
    if lacking:
        print(f"not run: {' '.join(lacking)} are missing (scripts/setup --object-stores)")
        return harness.SKIPPED
    started = time.monotonic()
    with mini_ceph.mini_ceph() as ceph:
        print(f"Ceph and its gateway started in {time.monotonic() - started:.1f} s")
        environment = {
            **os.environ,
            **ceph.environment,
            **ceph.s3_environment(),
            "VARVE_TEST_OBJECTS": ceph.s3_url("test"),
        }
        command = [harness.program("conformance_test"), "--gtest_filter=-*/file", *sys.argv[1:]]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
    print(done.stdout, done.stderr)
    # A filter that leaves nothing would pass, too.
    assert re.search(r"PASSED  \] [1-9]\d* test", done.stdout), "no test has passed"
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
