# SPDX-License-Identifier: Apache-2.0
"""`varve view` as a process, and a store with runs, tags and metrics that it shows."""

import http.client
import json
import os
import pathlib
import random
import signal
import struct
import subprocess
import urllib.parse

import harness
import safetensors_bytes as files
from verb_case import VerbCase


class EndedError(Exception):
    """A view that has ended before it showed anything."""

    def __init__(self, exit_code, errors):
        super().__init__(f"varve view exited {exit_code}: {errors}")
        self.exit_code, self.errors = exit_code, errors


class View:
    """A `varve view` of a store, until the end of the `with`. Ctrl-C must end it with exit code 0.

    `limit`: words of a shell that limit what it becomes. Raises EndedError.
    """

    def __init__(self, store, *arguments, env=None, limit=""):
        self.process = subprocess.Popen(
            [
                *("bash", "-c", f'{limit} exec "$@"', "bash", harness.program("varve")),
                *("-s", str(store), "-q", "--json", "view", *map(str, arguments)),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=env,
        )
        lines = []
        for line in self.process.stdout:
            lines.append(line)
            if line.rstrip() == "}":
                break
        if not lines:
            errors = self.process.communicate()[1]
            raise EndedError(self.process.returncode, errors)
        self.url = json.loads("".join(lines))["url"]
        parts = urllib.parse.urlsplit(self.url)
        self.port = parts.port
        self.token = parts.path.strip("/")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        code, errors = self.end()
        assert (code, errors) == (0, ""), f"varve view exited {code}\n{errors}"

    def end(self):
        """Presses Ctrl-C. Returns the exit code, and what it has said since its start."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        out, errors = self.process.communicate()
        return self.process.returncode, out + errors

    def request(self, path, method="GET", headers=None, host=None, body=None):
        """Status, headers and body of the answer to any request."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port)
        connection.putrequest(method, path, skip_host=True)
        connection.putheader("Host", host if host is not None else f"127.0.0.1:{self.port}")
        for name, value in (headers or {}).items():
            connection.putheader(name, value)
        if body is not None:
            connection.putheader("Content-Length", str(len(body)))
        connection.endheaders(body)
        answer = connection.getresponse()
        content = answer.read()
        connection.close()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, content

    def api_path(self, what, **parameters):
        named = [(name.replace("_", "-"), value) for name, value in parameters.items()]
        return f"/{self.token}/api/{what}?{urllib.parse.urlencode(named, doseq=True)}"

    def ask(self, what, expect=200, **parameters):
        """The JSON of one answer, which may take long."""
        status, headers, body = self.request(self.api_path(what, **parameters))
        while status == 202:
            path = self.api_path("job", id=json.loads(body)["job"])
            status, headers, body = self.request(path)
        assert status == expect, f"{what} {parameters}: {status} {body[:500]}"
        assert headers["content-type"] == "application/json", headers
        return json.loads(body)


def floats(values):
    return "F32", [len(values)], struct.pack(f"<{len(values)}f", *values)


def matrix(rng, rows, columns):
    values = [rng.gauss(0, 1) for _ in range(rows * columns)]
    return "F32", [rows, columns], struct.pack(f"<{len(values)}f", *values)


def train(folder, store, steps=(10, 20, 30, 40), layers=3, seed=5):
    """A store as a small training leaves it: two runs, a tag, metrics, a frozen layer, a NaN at the end."""
    rng = random.Random(seed)
    tensors = {
        "model.embed.weight": matrix(rng, 64, 32),
        "model.frozen.weight": matrix(rng, 32, 32),
    }
    for layer in range(layers):
        for part in ("attention", "mlp"):
            tensors[f"model.layers.{layer}.{part}.weight"] = matrix(rng, 32, 32)
            tensors[f"model.layers.{layer}.{part}.bias"] = floats([0.0] * 32)
    for i, step in enumerate(steps):
        for name in tensors:
            if name.startswith("model.layers.") and name.endswith("weight"):
                tensors[name] = matrix(rng, 32, 32)
        if i == len(steps) - 1:
            tensors["model.layers.0.mlp.bias"] = floats([float("nan")] + [0.0] * 31)
        path = files.write(folder / "in.safetensors", tensors)
        metrics = ["--metric", f"loss={4 / (i + 1)}", "--metric", f"accuracy={i / 10}"]
        harness.varve(store, "import", path, "--init", "--step", step, *metrics)
    harness.varve(store, "tag", steps[1], "warm")
    harness.varve(store, "fork", "main", "fine", "--at", steps[1])
    tensors["model.embed.weight"] = matrix(rng, 64, 32)
    path = files.write(folder / "in.safetensors", tensors)
    harness.varve(
        store, "import", path, "--run", "fine", "--step", steps[1] + 5, "--metric", "loss=0.5"
    )


# What a name may hold that a page could take for something else.
HOSTILE = [
    "<img src=x onerror=alert(1)>",
    "<script>alert(2)</script>",
    '"><svg onload=alert(3)>',
    "javascript:alert(4)",
    "a&b'c\"d",
    "=HYPERLINK(1)",
    "\u202eright-to-left",
    "line\nbreak\x1b[31m",
    "../../etc/passwd?x#y%2e",
    "constructor",
    "__proto__",
    "\U0001f9ea.\u00fcnicode",
    "a*",  # as a pattern it would match the name above
    "[a]?{b}",
]


def hostile_store(folder, store):
    rng = random.Random(7)
    tensors = {name: matrix(rng, 4, 4) for name in HOSTILE}
    path = files.write(folder / "in.safetensors", tensors)
    harness.varve(store, "import", path, "--init", "--run", "<b>run</b>", "--step", 1)
    tensors[HOSTILE[0]] = matrix(rng, 4, 4)
    path = files.write(folder / "in.safetensors", tensors)
    arguments = ["--run", "<b>run</b>", "--step", 2, "--tag", "<i>tag</i>"]
    for name in ("<u>m</u>", "__proto__"):
        arguments += ["--metric", f"{name}=1"]
    harness.varve(store, "import", path, *arguments)


# Names and numbers that take much room.
WIDE_STEP = 2**63
WIDE_NAMES = ["model." + "transformer_block_" * 8 + end for end in ("weight", "bias")] + ["w" * 200]


def wide_store(folder, store):
    rng = random.Random(9)
    for step in (1, WIDE_STEP):
        tensors = {name: matrix(rng, 16, 16) for name in WIDE_NAMES}
        tensors["axes"] = ("F32", [1, 2, 1, 2, 1, 2, 1, 2], floats([1.25] * 16)[2])
        path = files.write(folder / "in.safetensors", tensors)
        words = [
            word
            for i in range(6)
            for word in ("--metric", f"validation_loss_of_set_{i}={1 / (i + 3)}")
        ]
        words += [word for i in range(6) for word in ("--tag", f"{step}-before-the-long-run-{i}")]
        harness.varve(store, "import", path, "--init", "--step", step, *words)
    harness.varve(store, "fork", "main", "a-run-with-a-name-" + "that-is-long-" * 6, "--at", 1)


class ViewCase(VerbCase):
    def setUp(self):
        super().setUp()
        train(self.folder, self.store)

    def view(self, *arguments):
        return View(self.store, *arguments)


def kept_folder(name):
    """A folder of the build where what a person looks at is kept."""
    folder = pathlib.Path(os.environ["VARVE_BIN_DIR"]).parent / name
    folder.mkdir(exist_ok=True)
    return folder
