# SPDX-License-Identifier: Apache-2.0
"""What bench/remote.py needs of an object store: a server of its own, the server's counts of requests and
bytes, and the engine's own tool, which moves the same bytes.

All counts are those of the server, so what a client says of itself is not believed.
"""

import contextlib
import datetime
import hashlib
import hmac
import json
import os
import pathlib
import signal
import subprocess
import sys
import time
import urllib.parse
from typing import NamedTuple

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests/support"))
import mini_ceph  # noqa: E402

RADOS_OBJECT = 4 << 20  # bytes, what rados bench writes by default


class Counts(NamedTuple):
    """Since the server started: requests, bytes that clients have sent, and bytes that they have fetched."""

    requests: int
    sent: int
    fetched: int

    def __sub__(self, other):
        return Counts(*(a - b for a, b in zip(self, other, strict=True)))


def timed(command, env):
    """Seconds of a whole process, and what it printed."""
    started = time.monotonic()
    done = subprocess.run(list(map(str, command)), env=env, capture_output=True, text=True)
    seconds = time.monotonic() - started
    if done.returncode != 0:
        sys.exit(f"bench: {command[0]} exited {done.returncode}\n{done.stdout}{done.stderr}")
    return seconds, done.stdout


class Engine:
    """A Ceph of its own, which ends with the object."""

    def __init__(self, folder):
        self.folder = folder
        self.ceph = mini_ceph.MiniCeph()
        self.environment = {**self.ceph.environment, **self.ceph.s3_environment()}
        os.environ.update(self.ceph.s3_environment())
        os.environ["CEPH_CONF"] = str(self.ceph.config)

    def close(self):
        self.ceph.close()

    def pin(self, cores):
        """Lets the servers run on these cores only."""
        for process in self.ceph.processes.values():
            for thread in pathlib.Path(f"/proc/{process.pid}/task").glob("*"):
                with contextlib.suppress(ProcessLookupError):
                    os.sched_setaffinity(int(thread.name), cores)

    def run(self, *command):
        return timed(command, self.environment)[1]

    def perf(self, daemon):
        (socket,) = (self.ceph.folder / "run").glob(f"{daemon}.*.asok")
        return json.loads(self.run("ceph", "--admin-daemon", socket, "perf", "dump"))


class S3(Engine):
    """curl puts and gets the same files by signed URLs, so many at a time as varve does."""

    name, tool = "S3", "curl"

    def url(self, name):
        return self.ceph.s3_url(name)

    def counts(self):
        rgw = self.perf("client.rgw")["rgw"]
        # The gateway counts the last byte minus the first one of each get.
        return Counts(rgw["req"], rgw["put_b"], rgw["get_b"] + rgw["get"])

    def empty(self):
        self.run(
            *("radosgw-admin", "bucket", "rm", f"--bucket={mini_ceph.BUCKET}"),
            *("--purge-objects", "--bypass-gc"),
        )
        mini_ceph.put_bucket(self.ceph.endpoint)
        self.discard()

    def discard(self):
        """Gives back what was replaced or removed, which the gateway keeps for two hours."""
        self.run("radosgw-admin", "gc", "process", "--include-all")

    def put(self, files):
        lines = []
        for file in files:
            lines += [f'upload-file = "{file}"', f'url = "{self._signed("PUT", file.name)}"']
        return self._curl(lines, sum(file.stat().st_size for file in files), "sent")

    def get(self, files):
        """Into memory that nobody looks at."""
        lines = []
        for file in files:
            lines += [f'url = "{self._signed("GET", file.name)}"', 'output = "/dev/null"']
        return self._curl(lines, sum(file.stat().st_size for file in files), "fetched")

    def _curl(self, lines, num_bytes, moved):
        config = self.folder / "curl.config"
        lines = ["parallel", "parallel-max = 4", "silent", "show-error", "fail", *lines]
        config.write_text("\n".join(lines))
        before = self.counts()
        seconds, _ = timed(["curl", "-q", "--config", config], self.environment)
        found = getattr(self.counts() - before, moved)
        if found != num_bytes:
            sys.exit(f"bench: curl has {moved} {found} bytes, expected {num_bytes}")
        return seconds

    def _signed(self, method, name):
        """A URL that needs no header, from the manual of S3."""
        host = self.ceph.endpoint.removeprefix("http://")
        now = datetime.datetime.now(datetime.UTC).strftime("%Y%m%dT%H%M%SZ")
        scope = f"{now[:8]}/us-east-1/s3/aws4_request"
        path = f"/{mini_ceph.BUCKET}/tool/{name}"
        query = urllib.parse.urlencode(
            {
                "X-Amz-Algorithm": "AWS4-HMAC-SHA256",
                "X-Amz-Credential": f"{mini_ceph.ACCESS_KEY}/{scope}",
                "X-Amz-Date": now,
                "X-Amz-Expires": "3600",
                "X-Amz-SignedHeaders": "host",
            }
        )
        request = f"{method}\n{path}\n{query}\nhost:{host}\n\nhost\nUNSIGNED-PAYLOAD"
        digest = hashlib.sha256(request.encode()).hexdigest()
        key = f"AWS4{mini_ceph.SECRET_KEY}".encode()
        for part in scope.split("/"):
            key = hmac.digest(key, part.encode(), "sha256")
        text = f"AWS4-HMAC-SHA256\n{now}\n{scope}\n{digest}"
        signature = hmac.digest(key, text.encode(), "sha256").hex()
        return f"{self.ceph.endpoint}{path}?{query}&X-Amz-Signature={signature}"


class Rados(Engine):
    """rados bench moves as many bytes, in objects of 4 MiB and 16 at a time, as it does by default."""

    name, tool = "RADOS", "rados bench"

    def __init__(self, folder):
        super().__init__(folder)
        # The gateway would speak to the OSD all the time, and spoil the counts.
        self.ceph.signal("rgw", signal.SIGKILL)

    def url(self, name):
        return f"rados://varve/{name}"

    def counts(self):
        osd = self.perf("osd.0")["osd"]
        return Counts(osd["op"], osd["op_in_bytes"], osd["op_out_bytes"])

    def empty(self):
        """A pool of the same name, because `rados purge` leaves what lies in namespaces."""
        pool = ("ceph", "osd", "pool")
        self.run("ceph", "config", "set", "mon", "mon_allow_pool_delete", "true")
        self.run(*pool, "delete", "varve", "varve", "--yes-i-really-really-mean-it")
        self.run(*pool, "create", "varve", 8, 8)

    def discard(self):
        """Removes what rados bench has written."""
        self.run("rados", "-p", "varve", "cleanup", "--prefix", "benchmark_data")

    def put(self, files):
        num_objects = -(-sum(file.stat().st_size for file in files) // RADOS_OBJECT)
        return self._bench(
            files, "write", "-b", RADOS_OBJECT, "--max-objects", num_objects, "--no-cleanup"
        )

    def get(self, files):
        return self._bench(files, "seq")

    def _bench(self, files, *mode):
        """The time that it prints, because it looks only once a second whether it is done. It is that of the
        same bytes, because the last object is seldom full."""
        text = self.run("rados", "bench", "-p", "varve", 600, *mode)
        values = dict(line.split(":") for line in text.splitlines() if line.count(":") == 1)
        seconds = float(values["Total time run"])
        (made,) = (int(value) for name, value in values.items() if name.endswith(" made"))
        return seconds * sum(file.stat().st_size for file in files) / (made * RADOS_OBJECT)
