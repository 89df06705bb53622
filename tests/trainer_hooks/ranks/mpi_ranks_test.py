# SPDX-License-Identifier: Apache-2.0
"""The conformance suite of RankGroup (rank_scripts.h) over MPI, on 1, 2 and 4 ranks.

With --mpi; otherwise varve was built without it, and this is skipped. Scripts that kill a rank are
left out: when a process dies, mpirun ends the whole job.
"""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

PROGRAM = pathlib.Path(os.environ["VARVE_BIN_DIR"]) / "rank_process"


def run(num_ranks):
    with tempfile.TemporaryDirectory(prefix="varve-mpi-") as folder:
        command = ["mpirun", "-n", str(num_ranks), "--allow-run-as-root", "--oversubscribe"]
        command += ["--mca", "btl", "self,vader", "--mca", "mpi_yield_when_idle", "1"]
        command += [PROGRAM, "--gtest_brief=1", "--gtest_filter=-*Killed*"]
        environment = dict(os.environ, VARVE_TEST_RANKS="mpi", VARVE_TEST_FOLDER=folder)
        print(*command, flush=True)
        return subprocess.run(command, env=environment, check=False, timeout=250).returncode


def main():
    if sys.argv[1:] != ["--mpi"]:
        print("skipped: this varve was built without MPI")
        return 77
    if shutil.which("mpirun") is None:
        sys.exit("this varve was built with MPI, but there is no mpirun")
    codes = [run(num_ranks) for num_ranks in (1, 2, 4)]
    print("exit codes", codes)
    return 1 if any(codes) else 0


if __name__ == "__main__":
    sys.exit(main())
