# SPDX-License-Identifier: Apache-2.0
"""A Ceph of one monitor, one OSD in memory and a gateway for S3, for tests. It starts in seconds.

All of it listens on 127.0.0.1 only. The OSD takes two bytes of memory for each byte stored.
"""

import contextlib
import datetime
import hashlib
import hmac
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
import uuid

import harness

ACCESS_KEY, SECRET_KEY = "varvekey", "varvesecret"
BUCKET = "varve"
PROGRAMS = ("ceph-mon", "ceph-osd", "radosgw", "radosgw-admin", "ceph", "ceph-authtool")

CONFIG = """[global]
fsid = {fsid}
mon host = v2:127.0.0.1:{port}/0
public addr = 127.0.0.1
cluster addr = 127.0.0.1
ms bind msgr1 = false
keyring = {folder}/keyring
run dir = {folder}/run
admin socket = {folder}/run/$name.$pid.asok
pid file = {folder}/run/$name.$pid.pid
log file = {folder}/log/$name.log
mon data = {folder}/mon
osd data = {folder}/osd$id
osd class dir = /usr/lib/x86_64-linux-gnu/rados-classes
osd objectstore = memstore
memstore device bytes = 4294967296
osd pool default size = 1
osd pool default min size = 1
osd pool default pg autoscale mode = off
osd pool default pg num = 8
osd crush chooseleaf type = 0
mon allow pool size one = true
# A monitor ends where less than 5 % of the file system is free. The stores of tests are small.
mon data avail crit = -1
mon data avail warn = -1
paxos propose interval = 0.05
paxos min wait = 0.02
rados osd op timeout = 20
[client.rgw]
rgw data = {folder}/rgw
rgw frontends = beast endpoint=127.0.0.1:{gateway}
"""


def missing():
    """The programs of Ceph that are not installed. scripts/setup --object-stores brings them."""
    return [program for program in PROGRAMS if shutil.which(program) is None]


class MiniCeph:
    """Starts with the object and ends with close()."""

    def __init__(self):
        # Short, because the path of a Unix socket has at most 107 bytes.
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="mc", dir="/tmp"))
        for name in ("mon", "run", "log", "rgw", "osd0"):
            (self.folder / name).mkdir()
        self.processes = {}
        self.gateway_port = harness.free_port()
        self.config = self.folder / "ceph.conf"
        self.environment = {**os.environ, "CEPH_CONF": str(self.config)}
        try:
            self._start()
        except BaseException:
            self.close()
            raise

    @property
    def endpoint(self):
        return f"http://127.0.0.1:{self.gateway_port}"

    def s3_url(self, prefix):
        return f"s3://{BUCKET}/{prefix}?endpoint={self.endpoint}"

    @staticmethod
    def s3_environment():
        return {
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "no_proxy": "127.0.0.1",
        }

    def close(self):
        for process in self.processes.values():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def signal(self, name, number):
        """Sends a signal to a process: mon, osd0 or rgw."""
        self.processes[name].send_signal(number)

    def restart_gateway(self):
        """Kills the gateway and starts it again. It answers when this returns."""
        self.signal("rgw", signal.SIGKILL)
        self.processes["rgw"].wait()
        self._start_gateway()

    def _start_gateway(self):
        self._spawn("rgw", "radosgw", "-n", "client.rgw", "-f")
        self._await("the gateway", lambda: answers(self.gateway_port))

    def _start(self):
        folder, fsid, port = self.folder, uuid.uuid4(), harness.free_port()
        self.config.write_text(
            CONFIG.format(folder=folder, fsid=fsid, port=port, gateway=self.gateway_port)
        )
        keyring = folder / "keyring"
        tool = ("ceph-authtool", keyring, "--gen-key")
        self._run("ceph-authtool", "--create-keyring", keyring)
        self._run(*tool, "-n", "mon.", "--cap", "mon", "allow *")
        self._run(*tool, "-n", "client.admin", "--cap", "mon", "allow *", "--cap", "osd", "allow *")
        self._run(
            *tool, "-n", "client.rgw", "--cap", "mon", "allow rw", "--cap", "osd", "allow rwx"
        )
        self._run(
            *tool, "-n", "osd.0", "--cap", "mon", "allow profile osd", "--cap", "osd", "allow *"
        )
        monmap = folder / "monmap"
        address = f"[v2:127.0.0.1:{port}]"
        self._run("monmaptool", "--create", "--fsid", fsid, "--addv", "a", address, monmap)
        self._run("ceph-mon", "-i", "a", "--mkfs", "--monmap", monmap, "--keyring", keyring)
        self._spawn("mon", "ceph-mon", "-i", "a", "-f")
        self._await("the monitor", lambda: answers(port))
        osd = uuid.uuid4()
        self._run("ceph", "--connect-timeout", 300, "osd", "new", osd, 0)
        self._run("ceph-osd", "-i", 0, "--mkfs", "--osd-uuid", osd)
        self._spawn("osd0", "ceph-osd", "-i", 0, "-f")
        self._await("the OSD", lambda: "1 up" in self._run("ceph", "osd", "stat"))
        self._run("ceph", "osd", "pool", "create", "varve", 8, 8)
        self._start_gateway()
        self._run(
            *("radosgw-admin", "user", "create", "--uid=t", "--display-name=t"),
            *(f"--access-key={ACCESS_KEY}", f"--secret-key={SECRET_KEY}"),
        )
        put_bucket(self.endpoint)

    def _run(self, *arguments):
        done = subprocess.run(
            list(map(str, arguments)), env=self.environment, capture_output=True, text=True
        )
        said = f"{arguments}: {done.stdout}{done.stderr}"
        self._assert_running(said)
        assert done.returncode == 0, said
        return done.stdout

    def _spawn(self, name, *arguments):
        with open(self.folder / "log" / f"{name}.out", "wb") as out:
            self.processes[name] = subprocess.Popen(
                list(map(str, arguments)),
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )

    def _await(self, what, is_ready):
        deadline = time.monotonic() + 300
        while not is_ready():
            self._assert_running(f"while waiting for {what}")
            assert time.monotonic() < deadline, f"{what} is not ready after 300 s"
            time.sleep(0.05)

    def _assert_running(self, when):
        for name, process in self.processes.items():
            if process.poll() is None:
                continue
            logs = sorted((self.folder / "log").glob(f"{name.rstrip('0')}*"))
            texts = (f"{log.name}: {log.read_text(errors='replace')[-2000:]}" for log in logs)
            free = shutil.disk_usage(self.folder).free
            raise AssertionError(
                f"{name} ended with {process.returncode}, {when}\n"
                f"{free} bytes are free in {self.folder}\n" + "\n".join(texts)
            )


def answers(port):
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1):
            return True
    except OSError:
        return False


def put_bucket(endpoint, bucket=BUCKET):
    """Makes a bucket. The signature is written anew here, from the manual of S3."""
    host = endpoint.removeprefix("http://")
    now = datetime.datetime.now(datetime.UTC).strftime("%Y%m%dT%H%M%SZ")
    empty = hashlib.sha256(b"").hexdigest()
    headers = {"host": host, "x-amz-content-sha256": empty, "x-amz-date": now}
    names = ";".join(headers)
    lines = "".join(f"{name}:{value}\n" for name, value in headers.items())
    canonical = f"PUT\n/{bucket}\n\n{lines}\n{names}\n{empty}"
    scope = f"{now[:8]}/us-east-1/s3/aws4_request"
    digest = hashlib.sha256(canonical.encode()).hexdigest()
    key = f"AWS4{SECRET_KEY}".encode()
    for part in (now[:8], "us-east-1", "s3", "aws4_request"):
        key = hmac.digest(key, part.encode(), "sha256")
    text = f"AWS4-HMAC-SHA256\n{now}\n{scope}\n{digest}"
    signature = hmac.digest(key, text.encode(), "sha256").hex()
    headers["Authorization"] = (
        f"AWS4-HMAC-SHA256 Credential={ACCESS_KEY}/{scope},"
        f"SignedHeaders={names},Signature={signature}"
    )
    request = urllib.request.Request(f"{endpoint}/{bucket}", method="PUT", headers=headers)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    opener.open(request, timeout=300).close()


@contextlib.contextmanager
def mini_ceph():
    ceph = MiniCeph()
    try:
        yield ceph
    finally:
        ceph.close()


def main():
    """Runs a Ceph until standard input ends. Prints the environment that clients need, then a URL for S3."""
    with mini_ceph() as ceph:
        for name, value in ceph.s3_environment().items():
            print(f"{name}={value}")
        print(f"CEPH_CONF={ceph.config}")
        print(ceph.s3_url("gpt"), flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
