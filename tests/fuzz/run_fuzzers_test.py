# SPDX-License-Identifier: Apache-2.0
"""Rounds of fuzzing, with a program in the place of varve_fuzz that says how much it did."""

import pathlib
import subprocess
import sys
import tempfile
import unittest

RUNNER = pathlib.Path(__file__).with_name("run_fuzzers.py")

# The fast target has 1,000 executions a run, the slow one 10. "broken" leaves a finding. An input of the
# slow target may take 60 s of the processor, and one of another target 5 s.
PROGRAM = """#!/bin/bash
if [[ "${VARVE_FUZZ_LIST:-}" ]]; then printf '%s 5\\n' @TARGETS@ | sed 's/^slow 5/slow 60/'; exit; fi
if [[ "${VARVE_FUZZ_SEEDS:-}" ]]; then touch "$VARVE_FUZZ_SEEDS/seed0"; exit; fi
echo "$VARVE_FUZZ_TARGET $*" >>"$(dirname "$0")/calls"
case "$VARVE_FUZZ_TARGET" in
  fast) executions=1000 ;;
  slow) executions=10 ;;
  idle) executions=0 ;;
  gone) echo "out of memory" >&2; exit 3 ;;
  broken)
    executions=5
    echo "it broke" >&2
    for a in "$@"; do [[ $a == -artifact_prefix=* ]] && printf '12 a' >"${a#*=}crash-1"; done ;;
esac
echo "#$executions DONE cov: 7 ft: 9" >&2
echo "stat::number_of_executed_units: $executions" >&2
[[ $VARVE_FUZZ_TARGET != broken ]]
"""


class RoundsTest(unittest.TestCase):
    def run_with(self, targets, *options):
        self.build = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        (self.build / "bin").mkdir()
        program = self.build / "bin" / "varve_fuzz"
        program.write_text(PROGRAM.replace("@TARGETS@", targets))
        program.chmod(0o755)
        return subprocess.run(
            [sys.executable, RUNNER, self.build, "--seconds", "3", *options],
            capture_output=True,
            text=True,
        )

    def calls_of(self, target):
        calls = (self.build / "bin" / "calls").read_text().splitlines()
        return [call for call in calls if call.startswith(target)]

    def test_one_round_unless_more_is_asked_for(self):
        done = self.run_with("fast slow")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("2 targets, 3 s each: 1010 executions, 0 findings", done.stdout)

    def test_an_input_that_waits_is_given_as_long_as_its_target_needs(self):
        done = self.run_with("fast slow")
        self.assertEqual(done.returncode, 0, done.stderr)
        for target, seconds in (("fast", 60), ("slow", 300)):
            (call,) = self.calls_of(target)
            self.assertIn(f" -timeout={seconds} -report_slow_units={seconds} ", call)

    def test_rounds_go_on_until_there_are_enough_executions(self):
        done = self.run_with("fast slow", "--executions", "2500")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("2 targets, 3 times 3 s each: 3030 executions, 0 findings", done.stdout)
        self.assertRegex(done.stdout, r"(?m)^fast +3000 +7 +1 0$")
        self.assertRegex(done.stdout, r"(?m)^slow +30 +7 +1 0$")
        for target in ("fast", "slow"):  # as many seconds for each
            calls = self.calls_of(target)
            self.assertEqual(len(calls), 3)
            self.assertTrue(all("-max_total_time=3 " in call for call in calls), calls)

    def test_a_finding_ends_the_rounds(self):
        done = self.run_with("fast broken", "--executions", "1000000")
        self.assertEqual(done.returncode, 1)
        self.assertIn("3 s each: 1005 executions, 1 findings", done.stdout)
        self.assertRegex(done.stdout, r"(?m)^broken .*crash-1$")

    def test_a_finding_tells_how_to_see_it_again(self):
        done = self.run_with("fast broken")
        self.assertEqual(done.returncode, 1)
        path = self.build / "findings" / "broken" / "crash-1"
        self.assertIn(f"FINDING in target broken: {path}\n", done.stdout)
        self.assertRegex(
            done.stdout, f"(?m)^  TMPDIR=.* VARVE_FUZZ_TARGET=broken .*/varve_fuzz {path}$"
        )
        self.assertIn(f"base64 -d >{path} <<<'MTIgYQ=='\n", done.stdout)
        self.assertIn("\n  it broke\n", done.stdout)

    def test_a_target_that_fails_without_an_input_is_a_finding(self):
        done = self.run_with("fast gone")
        self.assertEqual(done.returncode, 1)
        self.assertIn("FINDING in target gone: exit 3\n", done.stdout)
        self.assertIn("\n  out of memory\n", done.stdout)

    def test_targets_that_do_nothing_are_an_error(self):
        for targets, options in (
            ("idle", ()),
            ("fast idle", ()),
            ("fast idle", ("--executions", "10")),
        ):
            done = self.run_with(targets, *options)
            self.assertEqual(done.returncode, 1, targets)
            self.assertIn("no executions: idle\n", done.stdout)

    def test_a_round_without_executions_is_the_last(self):
        done = self.run_with("idle", "--executions", "10")
        self.assertEqual(done.returncode, 1)
        self.assertIn("10 executions were not reached", done.stdout)

    def test_no_such_target(self):
        done = self.run_with("fast", "--only", "keys")
        self.assertEqual(done.returncode, 1)
        self.assertIn('no target has "keys" in its name', done.stderr)


if __name__ == "__main__":
    unittest.main()
