# SPDX-License-Identifier: Apache-2.0
"""Completion: bash, zsh and fish fill in what they should, where they are installed."""

import os
import pathlib
import random
import shutil
import subprocess
import unittest

import harness
import safetensors_bytes as files

PATIENCE = 100  # seconds, only so that a test ends

# Asks the completion function as bash would: the words of the line, the last of them unfinished.
ASK = """
source ./script
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
_varve
((${#COMPREPLY[@]})) && printf '%s\\n' "${COMPREPLY[@]}"
"""


def script(shell):
    return harness.varve("none", "completion", shell).stdout


class BashTest(unittest.TestCase):
    def setUp(self):
        self.folder = self.enterContext(harness.clean_folder())
        (self.folder / "script").write_text(script("bash"))

    def complete(self, *words):
        done = subprocess.run(
            ["bash", "-c", ASK, "bash", harness.program("varve"), *words],
            cwd=self.folder,
            capture_output=True,
            text=True,
        )
        self.assertEqual(done.stderr, "")
        return done.stdout.split()

    def test_verbs(self):
        self.assertEqual(self.complete("st"), ["steps", "stats"])
        self.assertEqual(self.complete("-q", "--store", "steps", "sho"), ["show"])
        self.assertEqual(self.complete("help", "exi"), ["exit-codes"])
        self.assertEqual(self.complete("bogus", ""), [])

    def test_options(self):
        self.assertEqual(self.complete("--js"), ["--json"])
        self.assertEqual(self.complete("reclaim", "--a"), ["--all"])
        self.assertEqual(self.complete("ls", "--q"), ["--quiet"])

    def test_values(self):
        self.assertEqual(self.complete("import", "--on-existing", "r"), ["replace"])
        self.assertEqual(
            self.complete("import", "--on-existing", "="), ["error", "replace", "fork"]
        )
        self.assertEqual(self.complete("import", "--run", ""), [])
        self.assertEqual(self.complete("completion", ""), ["bash", "zsh", "fish"])

    def test_files_and_folders(self):
        (self.folder / "in").mkdir()
        (self.folder / "in.safetensors").touch()
        self.assertEqual(
            sorted(self.complete("import", "--step", "1", "in")), ["in", "in.safetensors"]
        )
        self.assertEqual(self.complete("--store", "i"), ["in"])

    def test_steps(self):
        tensors = {"w": files.random_tensor(random.Random(1), "F32", [10])}
        harness.varve(
            self.folder / "a store",
            "import",
            files.write(self.folder / "in", tensors),
            "--init",
            "--step",
            12,
            "--tag",
            "good",
            "--tag",
            "$(touch${IFS}hostile)",
        )
        for store in ("a\\ store", "'a store'"):
            self.assertEqual(self.complete("-s", store, "show", ""), ["latest", "12", "good"])
        self.assertEqual(self.complete("drop", "--store", "=", '"a store"', "12", "g"), ["good"])
        self.assertEqual(self.complete("-s", "gone", "show", ""), [])
        self.assertFalse((self.folder / "hostile").exists())

    def save(self, step, names, *arguments):
        tensors = {name: files.random_tensor(random.Random(1), "F32", [10]) for name in names}
        source = files.write(self.folder / "in", tensors)
        harness.varve(self.folder / "store", "import", source, "--init", "--step", step, *arguments)

    def test_words_that_the_store_knows(self):
        self.save(1, ["a.w", "a.b", "c", "$(touch${IFS}hostile)", "two words"], "--tag", "good")
        self.save(2, ["a.w", "a.x", "late"])
        self.save(7, ["e.w"], "--run", "exp~1", "--tag", "warm")

        def complete(*words):
            return self.complete("-s", "store", *words)

        self.assertEqual(complete("show", ""), ["latest", "1", "good", "2", "exp~1@latest"])
        # RUN@STEP, as Bash cuts it at @, and as it does not.
        self.assertEqual(complete("show", "exp~1", "@"), ["latest", "7", "warm"])
        self.assertEqual(complete("show", "exp~1", "@", "w"), ["warm"])
        self.assertEqual(complete("show", "exp~1@w"), ["exp~1@warm"])
        self.assertEqual(complete("diff", "1", "g"), ["good"])
        self.assertEqual(complete("rewind", "main", "--to", "g"), ["good"])
        self.assertEqual(complete("fork", "m"), ["main"])
        for verb in ("steps", "log", "forget", "drop", "untag", "import"):
            self.assertEqual(complete(verb, "--run", ""), ["exp~1", "main"], verb)
        self.assertEqual(complete("untag", ""), ["good"])
        self.assertEqual(complete("untag", "exp~1", "@", ""), ["warm"])
        self.assertEqual(complete("tag", "2", "g"), ["good"])
        # Tensors of the step on the line, or of the newest.
        self.assertEqual(complete("get", "1", ""), ["a.b", "a.w", "c"])
        self.assertEqual(complete("get", "1", "a."), ["a.b", "a.w"])
        self.assertEqual(complete("ls", "latest", "a."), ["a.w", "a.x"])
        self.assertEqual(complete("ls", "exp~1", "@", "warm", ""), ["e.w"])
        self.assertEqual(complete("show", "--json", "good", "c"), ["c"])
        self.assertEqual(complete("diff", "1", "2", "c"), ["c"])
        self.assertEqual(complete("log", "l"), ["late"])
        self.assertEqual(complete("log", "--run", "exp~1", ""), ["e.w"])
        self.assertEqual(complete("export", "1", "--include", "a"), ["a.b", "a.w"])
        self.assertEqual(complete("get", "9", ""), [])
        self.assertEqual(complete("get", "1", "a*"), [])
        self.assertFalse((self.folder / "hostile").exists())


class OtherShellsTest(unittest.TestCase):
    def check_syntax(self, shell):
        if not shutil.which(shell):
            self.skipTest(f"{shell} is not installed")
        with harness.clean_folder() as folder:
            path = pathlib.Path(folder, "script")
            path.write_text(script(shell))
            done = subprocess.run([shell, "-n", path], capture_output=True, text=True)
            self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_zsh(self):
        self.check_syntax("zsh")

    def test_fish(self):
        self.check_syntax("fish")
        done = subprocess.run(
            ["fish", "-c", "source; complete -C 'varve -q st'"],
            input=script("fish"),
            capture_output=True,
            text=True,
            check=True,
        )
        self.assertEqual([line.split()[0] for line in done.stdout.splitlines()], ["stats", "steps"])


# What zsh, on a terminal of its own, would offer for the line: a word a line in the file "offered".
ASK_ZSH = """
zmodload zsh/zpty
zpty z zsh -f -i
start() {
  PROMPT= fpath=($PWD $fpath)
  autoload -Uz compinit && compinit -D -u
  bindkey '^I' complete-word
  offer() {
    local -a offered
    [[ ${@[1,(i)(-|--)]} == *-(O|A|D)\\ * ]] && { builtin compadd "$@"; return }
    builtin compadd -A offered "$@"
    (($#offered)) && print -rl -- $offered >>offered
    builtin compadd "$@"
  }
  functions[compadd]=$functions[offer]
  finish() { print >done; exit }
  comppostfuncs=(finish)
}
zpty -w z "$(functions start); start"
zpty -n -w z "$1"$'\t'
while [[ ! -e done ]] && zpty -t z; do zpty -r z >>seen; done
"""


class OtherShellsStoreTest(unittest.TestCase):
    """Words that the store knows, on a line as the user types it."""

    def setUp(self):
        self.folder = self.enterContext(harness.clean_folder())
        for step, run in ((1, "main"), (2, "main"), (7, "exp")):
            tensors = {f"w{step}": files.random_tensor(random.Random(1), "F32", [10])}
            source = files.write(self.folder / "in", tensors)
            save = ("--step", step, "--run", run, "--tag", f"t{step}")
            harness.varve(self.folder / "store", "import", source, "--init", *save)
        path = os.path.dirname(harness.program("varve")) + ":" + os.environ["PATH"]
        self.environment = os.environ | {"PATH": path, "TERM": "dumb"}

    def run_shell(self, *words, **options):
        if not shutil.which(words[0]):
            self.skipTest(f"{words[0]} is not installed")
        done = subprocess.run(
            words, capture_output=True, text=True, cwd=self.folder, env=self.environment, **options
        )
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return done.stdout

    def fish(self, line):
        ask = f"source; complete -C 'varve {line}'"
        shown = self.run_shell("fish", "--no-config", "-c", ask, input=script("fish"))
        return sorted(text.split("\t")[0] for text in shown.splitlines())

    def zsh(self, line):
        for name in ("offered", "done"):
            (self.folder / name).unlink(missing_ok=True)
        (self.folder / "_varve").write_text(script("zsh"))
        self.run_shell("zsh", "-f", "-c", ASK_ZSH, "zsh", f"varve {line}", timeout=PATIENCE)
        offered = self.folder / "offered"
        return sorted(offered.read_text().split()) if offered.exists() else []

    def check(self, complete):
        for line, words in {
            "-s store show ": ["1", "2", "exp@latest", "latest", "t1", "t2"],
            "-s store show exp@": ["exp@7", "exp@latest", "exp@t7"],
            "-s store steps --run ": ["exp", "main"],
            "-s store get 1 w": ["w1"],
            "-q -s store get exp@7 w": ["w7"],
            "-s store log w": ["w2"],
            "-s store log --run exp w": ["w7"],
            "-s store untag ": ["t1", "t2"],
            "-s gone show ": [],
            "show -s store t": ["t1", "t2"],
            "import --on-existing r": ["replace"],
            "-s store drop --dry-r": ["--dry-run"],
        }.items():
            with self.subTest(line=line):
                self.assertEqual(complete(line), words)

    def test_fish(self):
        self.check(self.fish)

    def test_zsh(self):
        self.check(self.zsh)


if __name__ == "__main__":
    unittest.main()
