# SPDX-License-Identifier: Apache-2.0
"""scripts/gpu_check --run, with programs that only say what those of a pack might say."""

import json
import os
import pathlib
import subprocess
import sys
import unittest

import harness

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "scripts" / "gpu_check"
ROOM = "free: device 80000 MiB, folder 60000 MiB, host 100000 MiB"
DESCRIBE = f"""
[ "$1" = --describe ] && {{ printf 'a GPU\\n{ROOM}\\n'; exit 0; }}
echo "asked: $*"
while [ $# -gt 0 ]; do
  [ "$1" = --only ] && part=$2
  [ "$1" = --json ] && json=$2
  shift
done
echo "{{\\"rows\\": [{{\\"what\\": \\"GPU $part\\"}}]}}" >"$json"
"""
# As cuda_bench prints its rows.
BENCH = (
    DESCRIBE
    + """
case $part in
  digest) echo 'GPU digest, large state, 1 MiB     >= 0.85 x the best read pass   met   0.97 x' ;;
  save) echo 'GPU restore     no target        for information 9 GB/s' ;;
  large) echo 'GPU stall of Save, largest state, 0 % changed  <= 1.5 x read pass + 0.2 ms  met  0.8' ;;
esac
echo 'GPU restore     no target        not run: not asked for -'
"""
)
LOOP = "echo 'cuda_loop: (stall + slowdown) / interval 0.01, at most 0.02: met'"


def make(path, body):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)


class GpuCheckTest(unittest.TestCase):
    def run_script(
        self,
        *arguments,
        sanitizer=None,
        bench=BENCH,
        loop=LOOP,
        tests="echo '[  PASSED  ] 1 test.'",
        nccl=None,
        ldd=None,
        shared_mib=60000,
    ):
        """Exit code, JSON (None: no file) and text of one run of such programs."""
        with harness.clean_folder() as folder:
            for name, body in (("cuda_bench", bench), ("cuda_loop", loop), ("cuda_test", tests)):
                make(folder / "pack" / "bin" / name, body)
            if nccl is not None:
                make(folder / "pack" / "bin" / "nccl_test", nccl)
            if ldd is not None:
                make(folder / "tools" / "ldd", ldd)
            make(folder / "tools" / "df", f"echo Avail; echo {shared_mib}")
            if sanitizer is not None:
                make(folder / "cuda" / "bin" / "compute-sanitizer", sanitizer)
            done = subprocess.run(
                [SCRIPT, "--run", folder / "pack", *arguments],
                capture_output=True,
                text=True,
                check=False,
                env={
                    **{key: value for key, value in os.environ.items() if key == "VIRTUAL_ENV"},
                    "PATH": f"{folder}/tools:/usr/bin:/bin",
                    "OUT": str(folder / "out"),
                    "CUDA_HOME": str(folder / "cuda"),
                    "HOME": str(folder),
                    "TMPDIR": str(folder),
                },
            )
            out = folder / "out"
            document = json.loads((out / "gpu_check.json").read_text())
            text = (out / "gpu_check.txt").read_text()
            self.assertTrue(text.startswith(done.stdout.splitlines()[0]), done.stdout + done.stderr)
        return done.returncode, document, text

    @staticmethod
    def status_of(document):
        return {step["name"]: step["status"] for step in document["steps"]}

    def refused(self, *arguments):
        done = subprocess.run([SCRIPT, *arguments], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 2, done.stdout + done.stderr)
        return done.stderr

    def test_wrong_usage_is_refused(self):
        self.assertIn("unknown argument --rum", self.refused("--rum"))
        self.assertIn("--run needs a folder", self.refused("--run"))
        self.assertIn("--budget needs a number", self.refused("--budget", "long"))
        with harness.clean_folder() as folder:
            self.assertIn(f"{folder}/bin/cuda_test is missing", self.refused("--run", folder))
            make(folder / "bin" / "mine", "")
            self.assertIn(f"{folder} is no pack", self.refused("--pack", folder))

    def test_help_names_the_exit_codes(self):
        done = subprocess.run([SCRIPT, "--help"], capture_output=True, text=True, check=True)
        self.assertIn("77 = there is no GPU", done.stdout)
        self.assertNotIn("set -euo", done.stdout)

    def test_nccl_says_on_how_many_gpus_it_ran(self):
        skipped = "echo 'not run for n > 1: each rank needs a GPU'; echo '[  PASSED  ] 2 tests.'"
        code, document, text = self.run_script(nccl=skipped)
        self.assertEqual((code, self.status_of(document)["nccl"]), (0, "ok"), text)
        self.assertIn("\nnot run for n > 1\n", text)
        code, document, text = self.run_script(nccl=skipped, ldd="echo 'libnccl.so.2 => not found'")
        self.assertEqual(
            (code, self.status_of(document)["nccl"]), (0, "not run: no libnccl.so.2 here"), text
        )
        code, document, text = self.run_script(nccl="exit 1")
        self.assertEqual((code, self.status_of(document)["nccl"]), (1, "FAILED: exit code 1"), text)

    def test_all_holds(self):
        code, document, text = self.run_script()
        self.assertEqual(code, 0, text)
        self.assertEqual(document["device"], "a GPU " + ROOM)
        self.assertEqual(
            [part["rows"][0]["what"] for part in document["bench"]],
            ["GPU digest", "GPU save", "GPU large"],
        )
        self.assertEqual(
            self.status_of(document),
            {
                "tests": "ok",
                "nccl": "not run: packed on a machine without NCCL",
                "sanitizer memcheck": "not run: no compute-sanitizer here",
                "sanitizer racecheck": "not run: no compute-sanitizer here",
                "contract, 500 saves": "ok",
                "loop, changed 99/0/1": "ok",
                "loop, changed 90/9/1": "ok",
                "loop, changed 0/0/100": "ok",
                "bench digest": "ok",
                "bench save": "ok",
                "bench large": "ok",
            },
        )
        self.assertIn("9 GB/s", text)
        self.assertNotIn("not asked for", text.split("====")[0])
        self.assertIn("loop: 4096 MiB of state (asked for 4096, at least 512", text)
        self.assertIn("benchmarks: 8192 MiB of state (asked for 8192, at least 1024", text)
        self.assertIn("all of it held", text)

    def test_without_a_gpu(self):
        code, document, text = self.run_script(
            bench='echo "no GPU here: it\'s \\"away\\""; exit 77'
        )
        self.assertEqual(code, 77)
        self.assertEqual(document["device"], 'no GPU here: it\'s "away"')
        self.assertEqual((document["steps"], document["bench"]), ([], []))
        self.assertIn("no GPU here", text)

    def test_a_missed_target_is_told(self):
        code, document, text = self.run_script(loop="echo 'cuda_loop: 0.03, at most 0.02: NOT MET'")
        self.assertEqual(code, 1)
        self.assertEqual(self.status_of(document)["loop, changed 0/0/100"], "targets not met")
        self.assertEqual(self.status_of(document)["tests"], "ok")
        self.assertIn("not all of it held", text)

    def test_a_failed_test_is_told_and_the_rest_is_run(self):
        code, document, text = self.run_script(tests="echo '[  FAILED  ] ATest.Fails'; exit 3")
        self.assertEqual(code, 1)
        self.assertEqual(self.status_of(document)["tests"], "FAILED: exit code 3")
        self.assertEqual(self.status_of(document)["bench save"], "ok")
        self.assertIn("ATest.Fails", text)

    def test_what_does_not_fit_the_budget_is_not_called_held(self):
        code, document, _ = self.run_script("--budget", "0")
        self.assertEqual(code, 1)
        self.assertEqual(self.status_of(document)["bench save"], "not run: no time left")

    def test_quick_asks_for_digests_and_stalls_alone(self):
        code, document, text = self.run_script("--quick")
        self.assertEqual(code, 0, text)
        self.assertEqual(
            self.status_of(document), {"digests": "ok", "bench digest": "ok", "bench save": "ok"}
        )
        self.assertIn("asked: --only save", text)
        self.assertIn("--gib 2.000", text)

    def test_a_time_out_is_called_one_and_keeps_what_was_measured(self):
        slow = DESCRIBE + "[ $part = save ] && exec sleep 600"
        code, document, text = self.run_script("--budget", "15", bench=slow)
        self.assertEqual(code, 1)
        self.assertRegex(self.status_of(document)["bench save"], r"^TIMED OUT after \d+ s$")
        self.assertEqual(
            [part["rows"][0]["what"] for part in document["bench"]],
            ["GPU digest", "GPU save"],
            text,
        )

    def test_too_little_room_is_said_with_the_least(self):
        small = BENCH.replace("device 80000", "device 1500")
        code, document, text = self.run_script(bench=small)
        self.assertEqual(code, 1)
        self.assertEqual(
            self.status_of(document)["benchmarks"], "not run: room for 600 MiB, at least 1024"
        )
        self.assertEqual(self.status_of(document)["loop, changed 99/0/1"], "ok")
        self.assertIn("loop: 600 MiB of state", text)

    def test_stores_leave_shared_memory_that_is_too_small(self):
        _, _, text = self.run_script(shared_mib=64)
        self.assertIn("/dev/shm has 64 MiB, at least 2048: stores lie in", text)

    def test_tests_and_stores_have_one_folder(self):
        _, _, text = self.run_script(tests='echo "in $VARVE_TEST_DIR"')
        self.assertRegex(text, "in /.*/gpu_check-")

    def test_nccl_of_a_python_package_is_found(self):
        with harness.clean_folder() as folder:
            lib = folder / "lib" / "python3.11" / "site-packages" / "nvidia" / "nccl" / "lib"
            lib.mkdir(parents=True)
            (lib / "libnccl.so.2").touch()
            os.environ["VIRTUAL_ENV"] = str(folder)
            try:
                _, _, text = self.run_script(nccl='echo "from $LD_LIBRARY_PATH"')
            finally:
                del os.environ["VIRTUAL_ENV"]
            self.assertIn(str(lib), text)

    def test_a_sanitizer_that_finds_something(self):
        code, document, _ = self.run_script(
            sanitizer="echo '===== ERROR SUMMARY: 2 errors'; exit 9"
        )
        self.assertEqual(code, 1)
        self.assertEqual(
            self.status_of(document)["sanitizer memcheck"], "FAILED: ===== ERROR SUMMARY: 2 errors"
        )

    def test_a_sanitizer_that_does_not_work(self):
        code, document, _ = self.run_script(sanitizer="echo 'Error: Device not supported'; exit 1")
        self.assertEqual(code, 0)
        self.assertEqual(
            self.status_of(document)["sanitizer racecheck"],
            "did not work here: Error: Device not supported",
        )

    def test_a_sanitizer_that_finds_nothing(self):
        code, document, _ = self.run_script(sanitizer="echo '===== ERROR SUMMARY: 0 errors'")
        self.assertEqual((code, self.status_of(document)["sanitizer memcheck"]), (0, "ok"))

    def test_a_sanitizer_runs_the_kernels_alone(self):
        _, _, text = self.run_script(sanitizer='echo "asked: $*"')
        self.assertIn("--tool racecheck --report-api-errors no --error-exitcode 9", text)
        self.assertIn("cuda_test --gtest_filter=DeviceDigestTest.*", text)


if __name__ == "__main__":
    sys.exit(unittest.main())
