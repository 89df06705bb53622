# SPDX-License-Identifier: Apache-2.0
"""Any one file is lost or damaged: an answer is whole, or an error that names the file.

The files are the tables of a store, all files of a group but the tables of its members, the seal of a sealed
store, the note that says of which store a backup is, and all files of a place in an object store.
"""

import os
import random
import shutil
import subprocess
import unittest

import damage
import harness
import safetensors_bytes as files

FULL_SIZE = "VARVE_FULL_SIZE" in os.environ
QUESTIONS = (
    ["steps"],
    ["runs"],
    ["stats"],
    ["ls", "1"],
    ["ls", "2"],
    ["get", "1", "w", "--slice", ":9"],
    ["get", "2", "w", "--slice", ":9"],
)


class LostFilesTest(unittest.TestCase):
    def setUp(self):
        self.folder = self.enterContext(harness.clean_folder())
        self.store = self.folder / "store"
        rng = random.Random(13)
        for step in (1, 2):
            source = files.write(
                self.folder / "in.safetensors", {"w": files.random_tensor(rng, "F32", [30_000])}
            )
            harness.varve(self.store, "import", source, "--init", "--step", step)

    def answer(self, question):
        """None: damaged. What the disk holds is not compared: there is a file more or less."""
        done = subprocess.run(
            [harness.program("varve"), "-s", self.store, "--json", *question],
            capture_output=True,
            text=True,
        )
        if done.returncode != 0:
            return None, done
        answer = harness.json.loads(done.stdout)
        if question == ["stats"]:
            answer = {key: answer[key] for key in ("runs", "steps", "chunks", "stored_bytes")}
        return answer, done

    def test_each_table(self):
        whole = [self.answer(question)[0] for question in QUESTIONS]
        self.assertNotIn(None, whole)
        tables = sorted((self.store / "db").glob("*.sst"))
        self.assertGreater(len(tables), 8)
        for table in tables:
            saved = table.with_suffix(".saved")
            table.rename(saved)
            errors = 0
            for question, expected in zip(QUESTIONS, whole, strict=False):
                found, done = self.answer(question)
                if found is None:
                    errors += 1
                    self.assertEqual(done.returncode, harness.DAMAGED, (question, done.stderr))
                    self.assertIn(table.name, done.stderr, question)
                else:
                    self.assertEqual(found, expected, (table.name, question))
            check = harness.varve(self.store, "check", expect=harness.DAMAGED)
            self.assertIn(table.name, check.stdout)
            saved.rename(table)
        harness.check(self.store)


class DamagedTablesTest(unittest.TestCase):
    """Changed bytes in any one table: an answer is whole, or exit code 3 says that it is not."""

    def setUp(self):
        self.folder = self.enterContext(harness.clean_folder())
        self.store = self.folder / "store"
        rng = random.Random(17)
        tensors = {}
        for step, run in ((1, "a"), (2, "a"), (3, "b")):
            tensors[f"w{step}"] = files.random_tensor(rng, "F32", [30_000])
            source = files.write(self.folder / "in.safetensors", tensors)
            more = ("--run", run, "--metric", f"loss={step}")
            harness.varve(self.store, "import", source, "--init", "--step", step, *more)

    def ask(self, *question):
        done = subprocess.run(
            [harness.program("varve"), "-s", self.store, "--json", *question],
            capture_output=True,
            text=True,
        )
        return done.returncode, done.stdout and harness.json.loads(done.stdout), done.stderr

    def damage_each_table(self, question):
        """The whole answer, and those that were printed with exit code 3, with what was said."""
        code, whole, _ = self.ask(*question)
        self.assertEqual(code, 0)
        errors, parts = 0, []
        for table in sorted((self.store / "db").glob("*.sst")):
            kept = table.read_bytes()
            table.write_bytes(kept[:8] + bytes(byte ^ 0x55 for byte in kept[8:24]) + kept[24:])
            code, answer, said = self.ask(*question)
            table.write_bytes(kept)
            if code == 0:
                self.assertEqual(answer, whole, (table.name, question))
                continue
            errors += 1
            self.assertEqual(code, harness.DAMAGED, (table.name, said))
            self.assertRegex(said, r"^varve: [^\n]+\n$")
            if answer:
                parts.append((answer, said))
        self.assertGreater(errors, 0)
        return whole, parts

    def test_steps(self):
        whole, parts = self.damage_each_table(["steps", "--sort", "loss"])
        whole = {step["step"]: step for step in whole}
        listed = set()
        for answer, said in parts:
            self.assertIn("the list leaves out what cannot be read: ", said)
            for step in answer:
                expected = whole[step["step"]]
                if step["run"].startswith("#"):  # its name is lost, and so that of its parent
                    step |= {"run": expected["run"], "parent": expected["parent"]}
                self.assertEqual(step, expected, said)
            numbers = {step["step"] for step in answer}
            for step in set(whole) - numbers:
                self.assertIn(f"step {step} of run ", said)
            listed |= numbers
        # Whichever table is lost, the records of other steps are in others.
        self.assertEqual(listed, set(whole))

    def test_runs(self):
        whole, parts = self.damage_each_table(["runs"])
        whole = {run["run"]: run["steps"] for run in whole}
        self.assertTrue(parts)
        listed = set()
        for answer, said in parts:
            self.assertIn("the list leaves out what cannot be read: ", said)
            for run in answer:
                if not run["run"].startswith("#"):  # its name is lost
                    self.assertLessEqual(run["steps"], whole[run["run"]], said)
                    listed.add((run["run"], run["steps"]))
        # Whichever table is lost, the records of other steps are in others.
        self.assertTrue(listed)

    def test_log(self):
        whole, parts = self.damage_each_table(["log", "*", "--run", "a"])
        self.assertTrue(parts)
        for answer, said in parts:
            self.assertIn("the log leaves out what cannot be read: ", said)
            changes = {(change["name"], change["step"]) for change in answer}
            for name, step in changes:
                self.assertNotIn(f"{name}: step {step} of run a: ", said)
            for name, step in {(change["name"], change["step"]) for change in whole} - changes:
                self.assertRegex(said, rf"{name}: [^;]*step {step} of run a")

    def test_dry_run_of_drop(self):
        _, parts = self.damage_each_table(["drop", "a@..2", "--dry-run"])
        for _, said in parts:
            self.assertIn("the bytes leave out", said)

    def test_ls_stored(self):
        whole, parts = self.damage_each_table(["ls", "b@3", "--stored"])
        self.assertTrue(parts)
        for answer, said in parts:
            self.assertIn("the stored bytes leave out", said)
            for expected, tensor in zip(whole, answer, strict=True):
                if tensor["stored_bytes"] is None:
                    self.assertIn(f"tensor {tensor['name']}: ", said)
                    tensor["stored_bytes"] = expected["stored_bytes"]
                self.assertEqual(tensor, expected)


class WarningsTest(unittest.TestCase):
    """A verb that goes on in spite of damage warns of it, also with --json and with --quiet."""

    def setUp(self):
        self.folder = self.enterContext(harness.clean_folder())
        self.store, self.whole = self.folder / "store", self.folder / "whole"
        rng = random.Random(29)
        tensors = {}
        for step in (1, 2, 3):
            tensors[f"w{step}"] = files.random_tensor(rng, "F32", [3_000])
            self.source = files.write(self.folder / "in.safetensors", tensors)
            harness.varve(self.store, "import", self.source, "--init", "--step", step)
        shutil.copytree(self.store, self.whole)
        harness.varve(self.whole, "import", self.source, "--step", 4)
        self.url = f"file://{self.folder / 'remote'}"
        harness.varve(self.whole, "push", self.url)

    def run_damaged(self, table, output, verb):
        """Runs a verb on a copy of the store, in which a table is damaged."""
        copy = self.folder / "copy"
        shutil.copytree(self.store, copy)
        kept = table.read_bytes()
        damaged = kept[:8] + bytes(byte ^ 0x55 for byte in kept[8:24]) + kept[24:]
        (copy / "db" / table.name).write_bytes(damaged)
        store, *words = [copy if word is None else word for word in verb]
        command = [harness.program("varve"), "-s", store, output, *map(str, words)]
        done = subprocess.run(command, capture_output=True, text=True)
        shutil.rmtree(copy)
        said = [line for line in done.stderr.splitlines() if line.startswith("varve: warning: ")]
        return done, [line.removeprefix("varve: warning: ") for line in said]

    def test_each_verb(self):
        verbs = (  # None: the damaged copy
            [None, "import", self.source, "--step", 4],
            [None, "drop", 2],
            [None, "forget", "--keep-last", 1],
            [self.whole, "copy", 4, None],
            [None, "pull", self.url, 4],
        )
        for verb in verbs:
            num_warned = 0
            for table in sorted((self.store / "db").glob("*.sst")):
                done, said = self.run_damaged(table, "--json", verb)
                if done.returncode != 0:
                    continue
                answer = harness.json.loads(done.stdout)
                for part in answer.get("copied", [answer]):
                    self.assertEqual(part.get("warnings", []), said, (verb, table.name))
                if not said:
                    continue
                num_warned += 1
                quiet, said_quietly = self.run_damaged(table, "-q", verb)
                self.assertEqual((quiet.returncode, quiet.stdout), (0, ""), quiet.stderr)
                self.assertEqual(len(said_quietly), len(said), (verb, table.name))
            self.assertGreater(num_warned, 0, verb)


def export(store, step, folder):
    out = folder / "exported.safetensors"
    harness.varve(store, "export", step, "-o", out, "--force")
    return files.read(out)


class DamagedGroupFilesTest(unittest.TestCase):
    """A file of a group is missing, cut in half, empty, has its last 4 KiB zeroed, or one bit flipped."""

    QUESTIONS = (
        ["steps"],
        ["runs"],
        ["show", "good"],
        ["ls", "1"],
        ["ls", "4"],
        ["get", "4", "layer 2/gewöhnlich", "--slice", ":9"],
        ["check"],
    )

    def setUp(self):
        self.folder = self.enterContext(harness.clean_folder())
        self.root = self.folder / "root"
        harness.run("group_worker", "save", self.root, 2, 4)
        harness.varve(self.root, "tag", 2, "good")  # the newest record
        self.turn = 0

    def ask(self, question):
        return subprocess.run(
            [harness.program("varve"), "-s", self.root, "--json", *question],
            capture_output=True,
            text=True,
        )

    def expect_named(self, file, kind, said):
        """Records of the log are named by their number."""
        names = [file.name]
        if file.parent.name == "log" and file.name.isdigit():
            names = [f"record {int(file.name)} of the log"]
        self.assertTrue(any(name in said for name in names), f"{file} {kind}: {said}")

    def is_missed(self, file, kind, question, whole):
        """Whether an answer is not the whole one. Then it is an error, or a warning of the check."""
        done = self.ask(question)
        if done.returncode == 0 and done.stdout == whole:
            return False
        if done.returncode == 0:
            self.assertEqual(question, ["check"], f"{file} {kind}: another answer: {done.stdout}")
            report = harness.json.loads(done.stdout)
            warned = report.pop("warnings")
            self.assertEqual(report | {"warnings": []}, harness.json.loads(whole))
            self.assertEqual(len(warned), 1, warned)
            self.expect_named(file, kind, warned[0])
            return False
        is_no_group = file.name == "GROUP" and kind == "missing"
        code = harness.NO_STORE if is_no_group else harness.DAMAGED
        self.assertEqual(done.returncode, code, (file, kind, question, done.stderr))
        self.assertRegex(done.stderr, r"^varve: [^\n]+\n$")
        self.expect_named(file, kind, done.stdout + done.stderr)
        return True

    def chosen(self, kind):
        """All questions where a file is missing, and at full size. Else a check, and two others in turn."""
        if FULL_SIZE or kind == "missing":
            return self.QUESTIONS
        self.turn += 2
        *others, check = self.QUESTIONS
        return [others[(self.turn + i) % len(others)] for i in range(2)] + [check]

    def damage_each(self, chosen):
        """The files of which some damage was missed, as (path below the root, kind)."""
        whole = [self.ask(question) for question in self.QUESTIONS]
        for done in whole:
            self.assertEqual(done.returncode, 0, done.stderr)
        missed = set()
        for file in chosen:
            kept = file.read_bytes()
            for kind in damage.KINDS:
                name = str(file.relative_to(self.root))
                damage.damage(file, kind, random.Random(f"{name} {kind}"))
                for question in self.chosen(kind):
                    expected = whole[self.QUESTIONS.index(question)]
                    if self.is_missed(file, kind, question, expected.stdout):
                        missed.add((name, kind))
                file.write_bytes(kept)
        harness.check(self.root)
        return missed

    def test_each_file_of_the_root(self):
        of_root = [path for path in self.root.rglob("*") if path.is_file()]
        of_root = sorted(path for path in of_root if "members" not in path.parts)
        missed = self.damage_each(of_root)
        # Hints, and room for a full disk. All else is missed, however it is damaged.
        spare = ("RESERVE", "log/newest", "log/slots")
        names = [str(path.relative_to(self.root)) for path in of_root]
        needed = {name for name in names if not name.startswith(spare)}
        self.assertGreater(len(needed), 15)
        self.assertEqual(missed, {(name, kind) for name in needed for kind in damage.KINDS})

    def test_each_small_file_of_a_member(self):
        member = min(self.root.glob("members/*"))
        small = [path for path in member.rglob("*") if path.is_file() and path.suffix != ".sst"]
        small = [path for path in small if path.name != "RESERVE" and path.stat().st_size]
        missed = self.damage_each(sorted(small))
        manifest = next(member.glob("db/MANIFEST-*"))
        needed = {member / "FORMAT", member / "db" / "CURRENT", manifest}
        needed = {str(path.relative_to(self.root)) for path in needed}
        self.assertEqual({(n, k) for n, k in missed if n in needed}, missed)
        self.assertEqual(missed, {(name, kind) for name in needed for kind in damage.KINDS})

    def test_what_is_whole_is_copied_out(self):
        """What `varve repair` says to do, as it refuses groups: for each table of a member."""
        steps = [1, 2, 3, 4]
        whole = {step: export(self.root, step, self.folder) for step in steps}
        tables = sorted(min(self.root.glob("members/*")).glob("db/*.sst"))
        num_copied = num_hit = 0
        for number, table in enumerate(tables):
            kept = table.read_bytes()
            table.unlink()
            report = self.ask(["check", "--read-data"])
            self.assertEqual(report.returncode, harness.DAMAGED, report.stdout + report.stderr)
            copy = self.folder / f"copy{number}"
            for step in steps:
                done = subprocess.run(
                    [harness.program("varve"), "-s", self.root, "copy", str(step), copy, "--init"],
                    capture_output=True,
                    text=True,
                )
                self.assertIn(done.returncode, (0, harness.DAMAGED), done.stderr)
                num_copied += done.returncode == 0
                num_hit += done.returncode != 0
            there = (
                {s["step"] for s in harness.varve_json(copy, "steps")} if copy.exists() else set()
            )
            for step in there:
                self.assertEqual(export(copy, step, self.folder), whole[step], (table, step))
            if there:
                harness.varve(copy, "tag", min(there), "kept")
                harness.check(copy)
            table.write_bytes(kept)
        self.assertGreater(num_copied, 0)
        self.assertGreater(num_hit, 0)
        harness.check(self.root)

    def test_the_newest_record_is_named(self):
        newest = max(self.root.glob("log/0*"))
        newest.unlink()
        said = harness.varve(self.root, "steps", expect=harness.DAMAGED).stderr
        self.assertIn(f"record {int(newest.name)} of the log is missing", said)
        self.assertIn("newest", said)
        (self.root / "log" / "newest").unlink()  # what the message says to do
        harness.varve(self.root, "steps")


class DamagedCopyTest(unittest.TestCase):
    """Damage of files that only some stores have."""

    KINDS = (*damage.KINDS, "bit first", "bit late")

    def setUp(self):
        self.folder = self.enterContext(harness.clean_folder())
        self.store = self.folder / "store"
        self.key = self.folder / "key"
        self.key.write_bytes(bytes(range(32)))
        self.count = 0

    def save(self, *more):
        rng = random.Random(19)
        for step in (1, 2, 3):
            source = files.write(
                self.folder / "in.safetensors", {"w": files.random_tensor(rng, "F32", [3_000])}
            )
            harness.varve(self.store, "import", source, "--step", step, *more)

    def damaged(self, store, name, kind):
        """A copy of the store with this damage."""
        self.count += 1
        copy = self.folder / f"copy{self.count}"
        shutil.copytree(store, copy)
        damage.damage(copy / name, kind, random.Random(f"{name} {kind}"))
        return copy

    def ask(self, store, *question, env=None):
        command = [harness.program("varve"), "-s", store, "--json", *map(str, question)]
        return subprocess.run(command, capture_output=True, text=True, env=env)

    def expect_read(self, store, where):
        """What needs no damaged file is as before."""
        for question in (["steps"], ["ls", 2], ["get", 2, "w", "--slice", ":9"]):
            found, expected = (self.ask(each, *question) for each in (store, self.store))
            self.assertEqual(found.returncode, 0, (where, found.stderr))
            self.assertEqual(found.stdout, expected.stdout, where)

    def test_seal(self):
        """A seal has two slots. Damage of the slot that is not the newest one harms nothing."""
        keyed = ("--key-file", self.key)
        harness.varve(self.store, "init", *keyed)
        self.save(*keyed)
        (seal,) = self.store.glob("seal/*")
        refused = set()
        for kind in self.KINDS:
            copy = self.damaged(self.store, f"seal/{seal.name}", kind)
            where = f"{seal.name} {kind}"
            self.expect_read(copy, where)
            check = self.ask(copy, "check", "--read-data", *keyed)
            self.assertIn(check.returncode, (0, harness.DAMAGED), (where, check.stderr))
            written = self.ask(copy, "tag", 1, "good", *keyed)
            self.assertEqual(written.returncode, check.returncode, (where, written.stderr))
            if check.returncode != 0:
                refused.add(kind)
                for said in (check.stdout, written.stderr):
                    self.assertIn(seal.name, said, where)
                    self.assertIn("seal", said, where)
                self.assertEqual(len(harness.varve_json(copy, "steps")), 3)
                harness.varve(copy, "seal", *keyed)  # what the message says to do
                harness.varve(copy, "tag", 1, "good", *keyed)
            harness.varve(copy, "check", "--read-data", *keyed)
            shutil.rmtree(copy)
        self.assertLessEqual({"missing", "empty", "zeros"}, refused)

    def test_note_of_a_backup(self):
        """Nobody needs BACKUP to read. The next backup does not go into a copy of it knows not what."""
        harness.varve(self.store, "init")
        self.save()
        backup = self.folder / "backup"
        harness.varve(self.store, "backup", backup)
        lost = self.folder / "lost"
        shutil.copytree(self.store, lost)
        max(lost.glob("db/*.sst"), key=lambda path: path.stat().st_size).unlink()
        for kind in self.KINDS:
            copy = self.damaged(backup, "BACKUP", kind)
            where = f"BACKUP {kind}"
            self.expect_read(copy, where)
            harness.check(copy)
            said = harness.varve(copy, "-q", "check")
            warnings = harness.varve_json(copy, "check")["warnings"]
            self.assertEqual(said.stdout, "")
            self.assertEqual(said.stderr, "".join(f"varve: warning: {w}\n" for w in warnings))
            again = self.ask(self.store, "backup", copy)
            self.assertIn(again.returncode, (harness.FAILED, harness.DAMAGED), where)
            # Without BACKUP the folder is no backup, and with another store id that of another store.
            self.assertRegex(
                again.stderr, r"BACKUP|is not empty and no backup|copy of another store"
            )
            self.expect_read(copy, where)
            repaired = self.folder / f"repaired{self.count}"
            shutil.copytree(lost, repaired)
            harness.varve(repaired, "repair", "--yes", "--from", copy)
            self.expect_repaired(repaired, where)
            harness.varve(copy, "tag", 1, "good")  # a writer makes a store of its own of it
            harness.check(copy)
            shutil.rmtree(copy)

    def expect_repaired(self, store, where):
        for step in (1, 2, 3):
            found, expected = (self.ask(each, "get", step, "w") for each in (store, self.store))
            self.assertEqual(found.stdout, expected.stdout, where)
        harness.check(store)


class LostRemoteFilesTest(unittest.TestCase):
    """A file, or all records, of a place that a store was pushed to are missing."""

    QUESTIONS = (
        ["steps"],
        ["ls", "1"],
        ["ls", "3"],
        ["get", "1", "w", "--slice", ":9"],
        ["get", "3", "w", "--slice", ":9"],
        ["check", "--read-data"],
    )

    def setUp(self):
        self.folder = self.enterContext(harness.clean_folder())
        self.store = self.folder / "store"
        self.remote = self.folder / "remote"
        self.url = f"file://{self.remote}"
        self.rng = random.Random(23)
        for step in (1, 2, 3):
            self.save(step)
            harness.varve(self.store, "push", self.url)
        self.whole = [self.ask(self.url, question) for question in self.QUESTIONS]
        for done in self.whole:
            self.assertEqual(done.returncode, 0, done.stderr)
        self.pulls = 0

    def save(self, step):
        # A push of the first step has a blob for the tensor alone. The others are small.
        tensors = {"w": files.random_tensor(self.rng, "F32", [300_000 if step == 1 else 3_000])}
        source = files.write(self.folder / "in.safetensors", tensors)
        harness.varve(self.store, "import", source, "--init", "--step", step)

    def ask(self, store, question):
        command = [harness.program("varve"), "-s", store, "--json", *map(str, question)]
        return subprocess.run(command, capture_output=True, text=True)

    def expect_named(self, done, names, where):
        self.assertEqual(done.returncode, harness.DAMAGED, (where, done.stdout, done.stderr))
        self.assertRegex(done.stderr, r"^varve: [^\n]+\n$", where)
        said = done.stdout + done.stderr
        self.assertTrue(any(name in said for name in names), (where, said))

    def expect_pull(self, url, steps, names, where):
        """A pull brings all these steps, or names what is missing. Returns whether it does."""
        self.pulls += 1
        copy = self.folder / f"pulled{self.pulls}"
        done = self.ask(copy, ["pull", url, "--read-data"])
        if done.returncode != 0:
            self.expect_named(done, names, where)
            return False
        self.assertEqual([s["step"] for s in harness.varve_json(copy, "steps")], steps, where)
        harness.check(copy)
        return True

    def expect_whole_or_named(self, remote, names, where):
        """Returns whether something is missed."""
        url = f"file://{remote}"
        errors = 0
        for question, whole in zip(self.QUESTIONS, self.whole, strict=True):
            done = self.ask(url, question)
            if done.returncode == 0:
                self.assertEqual(done.stdout, whole.stdout, (where, question))
            else:
                errors += 1
                self.expect_named(done, names, (where, question))
        is_whole = self.expect_pull(url, [1, 2, 3], names, where)
        self.assertEqual(is_whole, errors == 0, where)
        self.expect_blobs_kept(remote, names, is_whole, where)
        self.expect_push_on(remote, names, is_whole, where)
        return not is_whole

    def expect_blobs_kept(self, remote, names, is_whole, where):
        """A collection removes nothing that was not removable before, whatever it answers."""
        before = sorted(remote.rglob("blobs/*"))
        done = self.ask(f"file://{remote}", ["reclaim"])
        self.assertEqual(sorted(remote.rglob("blobs/*")), before, (where, done.stderr))
        if done.returncode != 0:
            self.expect_named(done, names, (where, "reclaim"))
            self.assertFalse(is_whole, where)

    def expect_push_on(self, remote, names, is_whole, where):
        """Pushes of what is there and of more. Who is told that they are done can have all of it."""
        for store, steps in ((self.store, [1, 2, 3]), (self.later, [1, 2, 3, 4])):
            done = self.ask(store, ["push", f"file://{remote}"])
            if done.returncode != 0:
                self.expect_named(done, names, (where, "push"))
                self.assertFalse(is_whole, where)
            elif not self.expect_pull(f"file://{remote}", steps, names, where):
                self.assertFalse(is_whole, where)
                check = self.ask(f"file://{remote}", ["check", "--read-data"])
                self.expect_named(check, names, (where, "check"))

    def test_each_file(self):
        self.later = self.folder / "later"
        shutil.copytree(self.store, self.later)
        self.store, self.later = self.later, self.store
        self.save(4)
        self.store, self.later = self.later, self.store
        paths = sorted(path for path in self.remote.rglob("*") if path.is_file())
        names = [str(path.relative_to(self.remote)) for path in paths]
        missed = set()
        for name in names:
            copy = self.folder / "copy"
            shutil.copytree(self.remote, copy)
            (copy / name).unlink()
            if self.expect_whole_or_named(copy, [os.path.basename(name)], name):
                missed.add(name)
            shutil.rmtree(copy)
        states = [name for name in names if name.startswith("records/state-")]
        needed = {name for name in names if name.startswith("blobs/")} | {states[-1]}
        self.assertEqual(missed, needed)

    def test_all_records(self):
        self.later = self.store
        for has_notes in (False, True):
            for has_folder in (False, True):
                copy = self.folder / "copy"
                shutil.copytree(self.remote, copy)
                for record in (copy / "records").iterdir():
                    if not (has_notes and record.name.startswith("seen-")):
                        record.unlink()
                if not has_folder and not has_notes:
                    (copy / "records").rmdir()
                where = (has_notes, has_folder)
                names = ["record state-" if has_notes else "all records state-"]
                self.assertTrue(self.expect_whole_or_named(copy, names, where))
                self.assertFalse(list(copy.glob("records/state-*")), where)
                shutil.rmtree(copy)

    def test_the_message_says_how_to_go_on(self):
        newest = max(self.remote.glob("records/state-*"))
        newest.unlink()
        said = harness.varve(self.url, "steps", expect=harness.DAMAGED).stderr
        self.assertIn(f"{self.url}: record {newest.name} is missing", said)
        note = max(self.remote.glob("records/seen-*"))
        self.assertIn(note.name, said)
        note.unlink()
        self.assertEqual([s["step"] for s in harness.varve_json(self.url, "steps")], [1, 2])
        harness.varve(self.store, "push", self.url)
        self.assertTrue(self.expect_pull(self.url, [1, 2, 3], [], "the next push"))
        for record in self.remote.glob("records/*"):
            record.unlink()
        said = harness.varve(self.url, "steps", expect=harness.DAMAGED).stderr
        blobs = [path.name for path in self.remote.glob("blobs/*")]
        self.assertTrue(any(name in said for name in blobs), said)
        for blob in self.remote.glob("blobs/*"):
            blob.unlink()
        harness.varve(self.store, "push", self.url)
        self.assertTrue(self.expect_pull(self.url, [1, 2, 3], [], "a new place"))


if __name__ == "__main__":
    unittest.main()
