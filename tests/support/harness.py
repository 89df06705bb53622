# SPDX-License-Identifier: Apache-2.0
"""What the system tests share: the programs of this build, the shipped command, and clean folders."""

import contextlib
import importlib.util
import itertools
import json
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile

MIB = 1 << 20

# Exit codes of the `varve` command.
FAILED, USAGE, DAMAGED, NO_STORE, LOCKED, NO_STEP, EXISTS = 1, 2, 3, 10, 11, 12, 13

SKIPPED = 77  # ctest reads this exit code as "skipped"

PORT_NUMBERS = itertools.count(37 * os.getpid())  # those of processes lie apart


def program(name):
    path = pathlib.Path(os.environ["VARVE_BIN_DIR"], name)
    if not path.exists():
        sys.exit(f"{path} is missing: build it first")
    return str(path)


def has(package):
    """Whether a package of Python is installed. ImportError where $VARVE_REQUIRE names one that is not."""
    if importlib.util.find_spec(package) is not None:
        return True
    if package in os.environ.get("VARVE_REQUIRE", "").split():
        raise ImportError(f"{package} is not installed, and $VARVE_REQUIRE names it")
    return False


def varve(store, *arguments, expect=0, **options):
    """Runs the shipped command. The exit code must be `expect`. Returns the finished process."""
    command = [program("varve"), "-s", str(store), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, **options)
    assert done.returncode == expect, (
        f"{command} exited {done.returncode}, expected {expect}\n{done.stdout}{done.stderr}"
    )
    return done


def varve_json(store, *arguments, **options):
    return json.loads(varve(store, "--json", *arguments, **options).stdout)


def check(store):
    """Checks all data with the shipped command. Fails the test unless it is clean."""
    report = varve_json(store, "check", "--read-data")
    assert report["ok"] and not report["errors"], report
    return report


def run(name, *arguments, expect=0, **options):
    """Runs a program of the tests and returns what it printed."""
    command = [program(name), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, **options)
    assert done.returncode == expect, (
        f"{command} exited {done.returncode}, expected {expect}\n{done.stdout}{done.stderr}"
    )
    return done.stdout


def command(*arguments, **options):
    """Runs any command, which must succeed, and returns what it printed."""
    done = subprocess.run(list(map(str, arguments)), capture_output=True, text=True, **options)
    assert done.returncode == 0, f"{arguments} exited {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout


@contextlib.contextmanager
def clean_folder():
    """A new folder in $VARVE_TEST_DIR or the system's. It is kept when the test fails."""
    folder = pathlib.Path(
        tempfile.mkdtemp(prefix="varve-test-", dir=os.environ.get("VARVE_TEST_DIR"))
    )
    try:
        yield folder
    except BaseException:
        print(f"kept for a look: {folder}", file=sys.stderr)
        raise
    shutil.rmtree(folder)


def mpirun(num_ranks, *arguments):
    """The command that runs a program on so many ranks of this machine."""
    return [
        "mpirun",
        "-n",
        str(num_ranks),
        "--allow-run-as-root",
        "--oversubscribe",
        *map(str, arguments),
    ]


def why_no_mpi():
    """Says why mpirun cannot run gpt_train here. Empty when it can."""
    if not shutil.which("mpirun"):
        return "there is no mpirun"
    done = subprocess.run(
        mpirun(1, program("gpt_train"), "--train-iters", 0), capture_output=True, text=True
    )
    return "gpt_train was built without MPI" if "built without MPI" in done.stderr else ""


def disk_bytes(folder):
    """Bytes that the file system has allocated to all files below `folder`."""
    return sum(file.lstat().st_blocks * 512 for file in folder.rglob("*") if file.is_file())


def num_files(folder):
    return sum(1 for file in folder.rglob("*") if file.is_file())


@contextlib.contextmanager
def mounted(folder, *arguments):
    """Mounts with these arguments of mount(8) on `folder`. Raises PermissionError where we may not."""
    done = subprocess.run(["mount", *arguments, str(folder)], capture_output=True, text=True)
    if done.returncode != 0:
        raise PermissionError(f"mount {' '.join(arguments)}: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


class StoreTool:
    """A store_tool process: a store held open for writing, obeying `save 3 3`, `drop 1` and the like.

    `plan`: the size of the largest tensor, and perhaps "+trained" (step_content.h).
    """

    def __init__(self, store, plan=64 << 10, env=None):
        self.process = subprocess.Popen(
            [program("store_tool"), str(store), str(plan)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=env,
        )
        self.opened = self.process.stdout.readline().strip()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait()

    def say(self, order):
        """The answer to one order: "ok ..." or the error."""
        self.process.stdin.write(order + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline().strip()
        assert answer, f"store_tool died at '{order}' with {self.process.wait()}"
        return answer

    def must(self, order):
        answer = self.say(order)
        assert answer.startswith("ok"), f"'{order}' was answered: {answer}"
        return answer


def free_port():
    """A port of 127.0.0.1 that nobody listens on. The kernel gives out none of these by itself.

    So nobody else gets it before the program that it is for listens there.
    """
    for number in PORT_NUMBERS:
        with socket.socket() as s, contextlib.suppress(OSError):
            s.bind(("127.0.0.1", 20000 + number % 12000))
            return s.getsockname()[1]


def fill_disk(folder):
    """Takes every free byte of the file system of `folder` with one file. Returns that file."""
    path = folder / "filler"
    with open(path, "wb", buffering=0) as file:
        for size in (MIB, 4096):
            with contextlib.suppress(OSError):
                while file.write(bytes(size)) == size:
                    pass
    return path
