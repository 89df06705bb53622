# SPDX-License-Identifier: Apache-2.0
"""scripts/gpu_check --run, with programs that only say what those of a pack might say."""

import json
import pathlib
import subprocess
import sys
import unittest

import harness

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "scripts" / "gpu_check"
BENCH = """
[ "$1" = --describe ] && { echo 'a GPU'; exit 0; }
while [ $# -gt 0 ]; do [ "$1" = --json ] && echo '{"rows": [{"what": "GPU restore"}]}' >"$2"; shift; done
echo 'GPU restore   no target   for information 9 GB/s'
"""
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
    ):
        """Exit code, JSON (None: no file) and text of one run of such programs."""
        with harness.clean_folder() as folder:
            for name, body in (("cuda_bench", bench), ("cuda_loop", loop), ("cuda_test", tests)):
                make(folder / "pack" / "bin" / name, body)
            if nccl is not None:
                make(folder / "pack" / "bin" / "nccl_test", nccl)
            if ldd is not None:
                make(folder / "tools" / "ldd", ldd)
            if sanitizer is not None:
                make(folder / "cuda" / "bin" / "compute-sanitizer", sanitizer)
            done = subprocess.run(
                [SCRIPT, "--run", folder / "pack", *arguments],
                capture_output=True,
                text=True,
                check=False,
                env={
                    "PATH": f"{folder}/tools:/usr/bin:/bin",
                    "OUT": str(folder / "out"),
                    "CUDA_HOME": str(folder / "cuda"),
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
        self.assertEqual(document["device"], "a GPU")
        self.assertEqual(document["bench"]["rows"][0]["what"], "GPU restore")
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
                "benchmarks": "ok",
            },
        )
        self.assertIn("9 GB/s", text)
        self.assertIn("all of it held", text)

    def test_without_a_gpu(self):
        code, document, text = self.run_script(
            bench='echo "no GPU here: it\'s \\"away\\""; exit 77'
        )
        self.assertEqual(code, 77)
        self.assertEqual(document["device"], 'no GPU here: it\'s "away"')
        self.assertEqual((document["steps"], document["bench"]), ([], None))
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
        self.assertEqual(self.status_of(document)["benchmarks"], "ok")
        self.assertIn("ATest.Fails", text)

    def test_what_does_not_fit_the_budget_is_not_called_held(self):
        code, document, _ = self.run_script("--budget", "0")
        self.assertEqual(code, 1)
        self.assertEqual(self.status_of(document)["benchmarks"], "not run: no time left")

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


if __name__ == "__main__":
    sys.exit(unittest.main())
