# SPDX-License-Identifier: Apache-2.0
"""The verbs of the command that write, or read much, each with a store on which it has work to do.

Tests that kill verbs or give them too little run the same list. The store that a verb starts from is a copy
of one of the template's. Names in capitals in the arguments of a verb stand for files and folders of the
template, and DEST for a folder beside the store.
"""

import json
import os
import random
import shutil
import subprocess
import time

import harness
import safetensors_bytes as files

PLAN = "60000+trained"  # also rounded copies, and replays of an optimizer (step_content.h)
STEPS = range(1, 7)
NEW = 100  # a step that an import saves
NEWER = 1000  # one that a writer after the verb saves
REFUSED = (harness.EXISTS, harness.NO_STEP)  # of a verb that finds its work done
ALL = {f"main@{step}" for step in STEPS}
PLAIN = ([], {})  # tags and metrics of a step


class Verb:
    """`start`: the store of the template that it works on, empty = none.

    `changes`: steps that may be there or not, or changed, until it has ended. `replaces`: steps that are
    there at every moment, with the old content or that of IN. `leaves`: the facts of the steps that it
    changes, once it has ended. None: the step is gone. `makes`: what it leaves in DEST, a store, a remote or
    a file. `holds`: the steps of that store or remote. `reads`: it changes nothing, and its JSON is the
    answer. `varies`: keys of the answer that the same store may answer with other values.
    """

    def __init__(
        self,
        name,
        arguments,
        *,
        start="store",
        changes=(),
        replaces=(),
        leaves=None,
        makes="",
        holds=ALL,
        reads=False,
        varies=(),
    ):
        self.name, self.arguments, self.start = name, arguments, start
        self.changes, self.replaces = set(changes), set(replaces)
        self.makes, self.holds = makes, set(holds)
        self.reads, self.varies = reads, varies
        self.leaves = leaves or {}

    def answer(self, stdout):
        """The JSON of a verb that reads, without what varies."""
        answer = json.loads(stdout)
        for key in self.varies:
            del answer[key]
        return answer

    def kept(self):
        """The steps that are there at every moment."""
        if not self.start:
            return set()
        return (ALL if self.start != "pulled" else {"main@1", "main@2", "main@3"}) - self.changes


def gone(steps):
    return dict.fromkeys(steps)


def verbs():
    later = {f"main@{step}" for step in (4, 5, 6)}
    dropped = {"main@2", "main@4"}
    forgotten = ALL - {"main@5", "main@6"}
    new = [f"main@{NEW}"]
    rewound = gone(later) | {"main~1@4": PLAIN, "main~1@5": (["old"], {}), "main~1@6": PLAIN}
    pulled = {name: PLAIN for name in ALL} | {"main@5": (["old"], {})}
    return [
        Verb("init", ["init"], start=""),
        Verb("import", ["import", "IN", "--step", NEW], changes=new, leaves={new[0]: PLAIN}),
        Verb(
            "import new",
            ["import", "IN", "--step", NEW, "--init"],
            start="",
            changes=new,
            leaves={new[0]: PLAIN},
        ),
        Verb(
            "replace",
            ["import", "IN", "--step", 6, "--on-existing", "replace"],
            replaces=["main@6"],
        ),
        Verb("export", ["export", 3, "-o", "DEST/out.safetensors", "--force"], makes="file"),
        Verb(
            "get", ["get", 3, "layer 7/gewöhnlich", "-o", "DEST/out.npy", "--force"], makes="file"
        ),
        Verb("tag", ["tag", 2, "good"], leaves={"main@2": (["good"], {})}),
        Verb("untag", ["untag", "old"], leaves={"main@5": PLAIN}),
        Verb("metric", ["metric", 2, "loss=1"], leaves={"main@2": ([], {"loss": 1.0})}),
        Verb("fork", ["fork", "main", "other", "--at", 3], leaves={"other@3": PLAIN}),
        Verb("rewind", ["rewind", "main", "--to", 3], changes=later, leaves=rewound),
        Verb("drop", ["drop", 2, 4], changes=dropped, leaves=gone(dropped)),
        Verb("forget", ["forget", "--keep-last", 2], changes=forgotten, leaves=gone(forgotten)),
        Verb("reclaim", ["reclaim", "--all"]),
        Verb(
            "copy",
            ["copy", 1, 5, "DEST/copy", "--init", "--on-existing", "replace"],
            makes="store",
            holds={"main@1", "main@5"},
        ),
        Verb("backup", ["backup", "DEST/backup"], makes="store"),
        Verb("push", ["push", "file://DEST/remote"], makes="remote"),
        Verb("push step", ["push", "file://DEST/remote", 5], makes="remote", holds={"main@5"}),
        Verb("pull new", ["pull", "file://REMOTE"], start="", changes=ALL, leaves=pulled),
        Verb("pull", ["pull", "file://REMOTE"], start="pulled", changes=later, leaves=pulled),
        Verb(
            "pull step",
            ["pull", "file://REMOTE", 5],
            start="pulled",
            changes=["main@5"],
            leaves={"main@5": (["old"], {})},
        ),
        Verb("runs", ["runs"], reads=True),
        Verb("steps", ["steps"], reads=True),
        Verb("ls", ["ls", 3], reads=True),
        Verb("show", ["show", 3], reads=True),
        Verb("log", ["log", "*"], reads=True),
        # How many bytes the disk takes for a file is the file system's choice.
        Verb("stats", ["stats"], reads=True, varies=["disk_bytes"]),
        Verb("check", ["check", "--read-data"], reads=True),
        Verb("diff", ["diff", 1, 5], reads=True),
        Verb("repair", ["repair", "--yes"], start="damaged", changes=ALL),
        Verb(
            "repair partial",
            ["repair", "--keep-partial", "--yes"],
            start="damaged",
            changes=ALL,
        ),
        Verb(
            "repair from",
            ["repair", "--yes", "--from", "BACKUP"],
            start="damaged",
            changes=ALL,
        ),
        Verb("seal", ["seal"], start="unsealed"),
    ]


class Template:
    """The stores that verbs start from, and what is in them."""

    def __init__(self, folder):
        self.folder = folder
        self.store = folder / "store"
        self.remote = folder / "remote"
        self.backup = folder / "backup"
        with harness.StoreTool(self.store, PLAN) as tool:
            for step in (1, 2, 3):
                tool.must(f"save {step} {step}")
            self.push()
            harness.varve(folder / "pulled", "pull", f"file://{self.remote}")
            for step in (4, 5):
                tool.must(f"save {step} {step}")
            before_last = self.tables()
            tool.must("save 6 6")
            of_last = self.tables() - before_last
            tool.must("save 50 50")
        stored = harness.varve_json(self.store, "stats")["by_codec"]
        assert "replay" in stored, stored
        harness.varve(self.store, "drop", 50, "--no-reclaim")  # a reclaim has work to do
        harness.varve(self.store, "tag", 5, "old")
        self.push()
        harness.varve(self.store, "backup", self.backup)
        self.make_unsealed()
        rng = random.Random(3)
        self.input = files.write(
            folder / "in.safetensors", {"w": files.random_tensor(rng, "F32", [40_000])}
        )
        self.content = files.read(self.input)
        self.read = read_steps(self.store, ALL)
        self.facts = {
            start: facts(folder / start) if start else {}
            for start in ("", "store", "pulled", "unsealed")
        }
        self.answers = {}
        self.make_damaged(
            max(of_last & self.tables(), key=lambda name: (self.store / name).stat().st_size)
        )

    def push(self):
        harness.varve(self.store, "push", f"file://{self.remote}")

    def tables(self):
        """The names of the table files in the store."""
        return {str(path.relative_to(self.store)) for path in self.store.glob("db/*.sst")}

    def make_damaged(self, table):
        """A store without this table. Some of its steps are whole, and of a lost one some tensors are."""
        store = self.folder / "damaged"
        shutil.copytree(self.store, store)
        (store / table).unlink()
        self.read_damaged = read_steps(store, ALL)
        self.whole = {name for name, text in self.read_damaged.items() if text != "error:"}
        report = harness.varve_json(
            store, "repair", "--keep-partial", "--dry-run", expect=harness.DAMAGED
        )
        out = self.folder / "step.safetensors"
        self.partial = {}  # what a repair keeps in part: its tensors with their bytes
        for part in report["partial"]:
            harness.varve(self.store, "export", f"{part['run']}@{part['step']}", "-o", out)
            saved = files.read(out)
            assert part["kept_tensors"] and part["lost_tensors"], part
            name = f"{part['kept_in']}@{part['step']}"
            self.partial[name] = {tensor: saved[tensor] for tensor in part["kept_tensors"]}
            out.unlink()
        assert self.whole and self.partial, f"{self.read_damaged} {report}"

    def make_unsealed(self):
        """A sealed store that has lost its seal."""
        self.key = self.folder / "secret.key"
        self.key.write_bytes(random.Random(4).randbytes(32))
        store = self.folder / "unsealed"
        harness.varve(self.store, "copy", "1..6", store, "--init", "--key-file", str(self.key))
        shutil.rmtree(store / "seal")

    def expected(self, verb):
        """What the steps may be read as, all of them, while the verb works: one of these."""
        if verb.start != "damaged":
            return [self.read]
        if verb.name == "repair from":
            return [self.read_damaged, self.read]
        return [self.read_damaged]

    def repaired(self, verb):
        """The steps that a repair leaves."""
        if verb.name == "repair from":
            return ALL
        return self.whole | (set(self.partial) if verb.name == "repair partial" else set())


def read_steps(store, steps):
    """{RUN@STEP: the number of its content, or "error:"}, after all bytes were compared."""
    if not steps:
        return {}
    done = subprocess.run(
        [harness.program("damage_reader"), store, PLAN, *sorted(steps)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return {
        name: text.split()[0]
        for name, text in (line.split(" ", 1) for line in done.stdout.splitlines())
    }


def facts(store):
    """{RUN@STEP: (tags, metrics)}"""
    steps = harness.varve_json(store, "steps")
    return {f"{s['run']}@{s['step']}": (sorted(s["tags"]), s["metrics"]) for s in steps}


def listed(store):
    return set(facts(store))


class Run:
    """One run of a verb in a folder of its own."""

    def __init__(self, template, verb, folder):
        self.template, self.verb, self.folder = template, verb, folder
        self.store, self.dest = folder / "store", folder / "dest"
        self.dest.mkdir(parents=True)
        if verb.start:
            shutil.copytree(template.folder / verb.start, self.store)
        self.environment = dict(os.environ)
        if verb.start == "unsealed":
            self.environment["VARVE_KEY_FILE"] = str(template.key)
        self.command = [
            harness.program("varve"),
            "-s",
            str(self.store),
            "--json",
            *map(self.argument, verb.arguments),
        ]

    def argument(self, text):
        for name, path in (
            ("DEST", self.dest),
            ("REMOTE", self.template.remote),
            ("BACKUP", self.template.backup),
            ("IN", self.template.input),
        ):
            text = str(text).replace(name, str(path))
        return text

    def is_there(self):
        return bool(self.verb.start) or (self.store / "FORMAT").exists()

    def expect_kept(self):
        """Every step that the verb does not change is there with its bytes. Others are whole or not there."""
        if not self.is_there():
            return
        there = listed(self.store)
        kept = self.template.whole if self.verb.start == "damaged" else self.verb.kept()
        assert kept <= there, f"lost: {kept - there}"
        expected = self.template.expected(self.verb)
        compared = (there & ALL) - self.verb.replaces
        found = read_steps(self.store, compared)
        assert found in [{name: one[name] for name in compared} for one in expected], found
        for name, content in read_steps(self.store, self.verb.replaces).items():
            if content != self.template.read[name]:
                self.expect_imported(name)
        if self.verb.name == "pull new":
            assert there == ALL, f"a pulled store without {ALL - there}"
        if self.verb.start == "damaged":
            self.expect_partial(there - ALL - {f"main@{NEWER}"})

    def expect_partial(self, there):
        """Steps that are kept in part are all there, each as the repair says, or none of them is."""
        partial = self.template.partial if self.verb.name == "repair partial" else {}
        assert not there or there == set(partial), there
        for name in there:
            out = self.folder / "part.safetensors"
            harness.varve(self.store, "export", name, "-o", out)
            assert files.read(out) == partial[name], f"{name} has other tensors or bytes"
            out.unlink()

    def expect_imported(self, step):
        out = self.folder / "imported.safetensors"
        harness.varve(self.store, "export", step, "-o", out, "--force")
        assert files.read(out) == self.template.content, f"step {step} has other bytes"
        out.unlink()

    def expect_done(self):
        """The store says that the verb has done its work."""
        assert self.is_there(), "there is no store"
        if self.verb.start != "damaged":
            expected = self.template.facts[self.verb.start] | self.verb.leaves
            expected = {name: text for name, text in expected.items() if text is not None}
            found = facts(self.store)
            assert found == expected, f"tags and metrics of the steps: {found}, not {expected}"
        if self.verb.name == "reclaim":
            pending = harness.varve_json(self.store, "stats")["pending_bytes"]
            assert pending == 0, f"{pending} bytes of dropped steps are left"
        if self.verb.name == "seal":
            harness.varve(self.store, "check", env=self.environment)

    def expect_whole(self):
        """The verb has ended well: the store is sound and holds what it should."""
        self.expect_done()
        self.expect_kept()
        harness.check(self.store)
        name = self.verb.name
        if name.startswith("import"):
            self.expect_imported(NEW)
        elif name == "replace":
            self.expect_imported(6)
        elif self.verb.start == "damaged":
            there = listed(self.store)
            assert there == self.template.repaired(self.verb), f"after a repair: {there}"
            broken = [
                step
                for step, text in read_steps(self.store, there & ALL).items()
                if text == "error:"
            ]
            assert not broken, f"after a repair these cannot be read: {broken}"
        elif self.verb.makes in ("store", "remote"):
            self.expect_made()
        elif self.verb.makes == "file":
            assert self.made().read_bytes() == self.template.answers[name], "other bytes"

    def expect_answer(self, stdout):
        """A verb that has ended well: its answer is that of the same verb with all that it wants."""
        if self.verb.reads:
            found, expected = self.verb.answer(stdout), self.template.answers[self.verb.name]
            assert found == expected, f"answered {found}, expected {expected}"

    def is_whole(self):
        try:
            self.expect_whole()
        except AssertionError:
            return False
        return True

    def made(self):
        made = list(self.dest.iterdir())
        assert len(made) == 1, f"{self.verb.name} made {made}"
        return made[0]

    def expect_made(self):
        made = self.made()
        if self.verb.makes == "remote":
            store = self.folder / "pulled back"
            harness.varve(store, "pull", f"file://{made}")
        else:
            harness.check(made)
            store = made
        there = listed(store)
        assert there, f"{made} holds no step"
        assert there == self.verb.holds, f"{made} holds {there}"
        assert read_steps(store, there) == {name: self.template.read[name] for name in there}
        if store != made:
            shutil.rmtree(store)


def run_unhindered(template, verbs, folder):
    """Runs each verb with all that it wants. The template then knows its answer, or the file that it makes.

    Returns the seconds that each took, by name. A verb that has done nothing yet must not be taken for one
    that has done its work.
    """
    seconds = {}
    for verb in verbs:
        run = Run(template, verb, folder / verb.name)
        assert verb.reads or not run.is_whole(), f"who judges {verb.name} does not look at its work"
        started = time.monotonic()
        done = subprocess.run(run.command, capture_output=True, text=True, env=run.environment)
        seconds[verb.name] = time.monotonic() - started
        assert done.returncode == 0, f"{verb.name}: exit {done.returncode}: {done.stderr}"
        if verb.reads:
            template.answers[verb.name] = verb.answer(done.stdout)
            other = Run(template, verb, folder / f"{verb.name} again")
            other.expect_answer(subprocess.check_output(other.command, text=True))
            shutil.rmtree(other.folder)
        elif verb.makes == "file":
            template.answers[verb.name] = run.made().read_bytes()
        run.expect_whole()
        shutil.rmtree(run.folder)
    return seconds
