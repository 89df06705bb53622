# SPDX-License-Identifier: Apache-2.0
"""A store of a stranger, with links in the place of files that varve and RocksDB write.

Each verb that opens the store may work or refuse. Files and folders outside of the store stay as they are,
byte for byte, and nothing is made there. The names are those of files that are there, and those that the next
writer will choose.
"""

import os
import re
import shutil
import subprocess
import unittest

import harness
import store_verbs

FOLDERS = ("db", "incoming", "inbox", "spare", "seal", "db/lost")
# Names that are not there in a store at rest, or that need not be.
OTHERS = (
    "FORMAT.tmp",
    "SYNCED",
    "SYNCED.tmp",
    "RESERVE",
    "RESERVE.tmp",
    "BACKUP",
    "BACKUP.tmp",
    "spare/FORMAT",
    "spare/FORMAT.tmp",
    "db/LOCK",
    "db/IDENTITY",
    "db/CURRENT.tmp",
    "db/LOG",
    "db/LOG.old",
)


def names_to_come(store):
    """Names that RocksDB gives its next files."""
    numbers = [int(n) for path in store.glob("db/*") for n in re.findall(r"\d{6}", path.name)]
    for number in range(max(numbers) + 1, max(numbers) + 40):
        for form in (
            "MANIFEST-{}",
            "{}.sst",
            "{}.log",
            "{}.dbtmp",
            "OPTIONS-{}",
            "OPTIONS-{}.dbtmp",
        ):
            yield "db/" + form.format(f"{number:06}")


class LinksTest(unittest.TestCase):
    def setUp(self):
        self.folder = self.enterContext(harness.clean_folder())
        self.template = store_verbs.Template(self.folder / "template")
        self.count = 0

    def start(self, verb):
        """The verb on a store of its own, and a folder outside of it."""
        self.count += 1
        run = store_verbs.Run(self.template, verb, self.folder / f"run{self.count}")
        run.outside = run.folder / "outside"
        run.outside.mkdir()
        return run

    def plant(self, run, name, store=None):
        """Puts a link in the place of a file. What it leads to has the same bytes, or some."""
        path = (store or run.store) / name
        path.parent.mkdir(exist_ok=True)
        target = run.outside / name.replace("/", "+")
        if path.is_file():
            shutil.move(path, target)
        else:
            target.write_bytes(b"years of work " * 1000)
        path.unlink(missing_ok=True)
        path.symlink_to(target)

    def plant_folder(self, run, name):
        path, target = run.store / name, run.outside / name.replace("/", "+")
        if path.is_dir():
            shutil.move(path, target)
        else:
            target.mkdir()
        for other in (
            "thesis.txt",
            "birth-7",
            "0-0.answer",
            "0-0.applied",
            "0-0.tmp",
            "000001.sst",
            "000001.seal",
        ):
            (target / other).write_bytes(b"years of work " * 1000)
            os.utime(target / other, (0, 0))
        path.symlink_to(target)

    def outside(self, run):
        """What is outside: names, kinds and bytes."""
        return {
            path: path.read_bytes() if path.is_file() else None
            for path in sorted(run.outside.rglob("*"))
        }

    def expect_untouched(self, run, where):
        before = self.outside(run)
        done = subprocess.run(run.command, capture_output=True, text=True, env=run.environment)
        said = f"{where}: {run.verb.name}: exit {done.returncode}: {done.stderr}"
        self.assertGreaterEqual(done.returncode, 0, said)
        after = self.outside(run)
        changed = [str(p) for p in before if p not in after or after[p] != before[p]]
        made = [str(p) for p in after if p not in before]
        self.assertEqual((changed, made), ([], []), said)
        shutil.rmtree(run.folder)
        return done.returncode

    def verbs(self):
        """Those that write to the store, and of those that read it the one that reads the most."""
        for verb in store_verbs.verbs():
            reads = verb.reads or verb.makes == "file"
            if verb.start in ("store", "damaged") and (verb.name == "check" or not reads):
                yield verb

    def test_all_files_are_links(self):
        for verb in self.verbs():
            run = self.start(verb)
            for path in sorted(run.store.rglob("*")):
                if path.is_file():
                    self.plant(run, str(path.relative_to(run.store)))
            self.expect_untouched(run, "all files are links")

    def test_names_to_come_are_links(self):
        codes = []
        for verb in self.verbs():
            run = self.start(verb)
            for name in names_to_come(run.store):
                self.plant(run, name)
            codes.append(self.expect_untouched(run, "names to come"))
        self.assertIn(0, codes)

    def test_other_names_are_links(self):
        for verb in self.verbs():
            run = self.start(verb)
            for name in OTHERS:
                self.plant(run, name)
            self.expect_untouched(run, "other names")

    def test_each_other_name_is_a_link(self):
        for name in OTHERS:
            for verb in self.verbs():
                if verb.name in ("import", "drop", "repair"):
                    run = self.start(verb)
                    self.plant(run, name)
                    self.expect_untouched(run, name)

    def test_links_to_nothing_make_no_file(self):
        for verb in self.verbs():
            run = self.start(verb)
            for name in [*OTHERS, *names_to_come(run.store)]:
                self.plant(run, name)
            for path in list(run.outside.iterdir()):
                path.unlink()
            self.expect_untouched(run, "links to nothing")

    def test_a_folder_is_a_link(self):
        for name in FOLDERS:
            for verb in self.verbs():
                run = self.start(verb)
                self.plant_folder(run, name)
                self.expect_untouched(run, f"folder {name}")

    def test_a_writer_with_links_beside_it(self):
        """What a live writer is asked for goes through inbox/."""
        verb = next(verb for verb in store_verbs.verbs() if verb.name == "tag")
        run = self.start(verb)
        with harness.StoreTool(run.store, store_verbs.PLAN) as tool:
            shutil.rmtree(run.store / "inbox", ignore_errors=True)
            self.plant_folder(run, "inbox")
            (run.outside / "inbox" / "0-1.request").write_bytes(b"years of work")
            before = self.outside(run)
            done = subprocess.run(run.command, capture_output=True, text=True)
            tool.must("save 200 200")
            self.assertEqual(done.returncode, harness.DAMAGED, done.stderr)
            self.assertIn("inbox is a link", done.stderr)
            self.assertEqual(self.outside(run), before)

    def test_a_copy_with_links_in_it(self):
        """A backup, and a pull, that go on in a folder that a stranger has changed."""
        for verb in store_verbs.verbs():
            if verb.name not in ("backup", "pull"):
                continue
            run = self.start(verb)
            copy = run.store if verb.name == "pull" else run.dest / "backup"
            if verb.name == "backup":
                shutil.copytree(self.template.folder / "pulled", copy)
            with_tmp = [f"db/{path.name}.tmp" for path in self.template.store.glob("db/*")]
            for name in [*with_tmp, "BACKUP.tmp", "FORMAT.tmp", "db/CURRENT.tmp", "staging"]:
                self.plant(run, name, copy)
            self.expect_untouched(run, "names in the copy")


if __name__ == "__main__":
    unittest.main()
