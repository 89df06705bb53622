# SPDX-License-Identifier: Apache-2.0
"""A proxy in front of a server of S3 that fails on purpose, in the ways in which servers and networks do.

It listens on 127.0.0.1 only. The host that clients sign is the proxy's, and it is passed on unchanged.
"""

import collections
import contextlib
import http.client
import random
import socketserver
import threading
import time

# The share of requests that each fault hits.
FAULTS = {
    "500": 0.03,
    "503": 0.03,
    "429": 0.02,
    "409": 0.1,  # of creations only
    "reset": 0.03,  # the connection is closed before the request is passed on
    "unanswered": 0.04,  # the request is done, and the connection closed without an answer
    "truncated": 0.03,  # half of the answer, then the connection is closed
    "slow": 0.05,
}


class Handler(socketserver.StreamRequestHandler):
    def handle(self):
        with contextlib.suppress(ConnectionError, TimeoutError):
            while self.handle_one():
                pass

    def handle_one(self):
        """Returns whether the connection goes on."""
        line = self.rfile.readline()
        if not line:
            return False
        method, path, _ = line.decode().split()
        headers = []
        while (line := self.rfile.readline()) not in (b"\r\n", b""):
            name, value = line.decode().split(":", 1)
            headers.append((name, value.strip()))
        named = {name.lower(): value for name, value in headers}
        body = self.rfile.read(int(named.get("content-length", 0)))
        fault = self.server.draw(is_creation="if-none-match" in named)
        if fault in ("500", "503", "429", "409"):
            return self.answer(int(fault), [], b"<Error><Code>Planned</Code></Error>")
        if fault == "reset":
            return False
        if fault == "slow":
            time.sleep(random.random() * 0.2)
        code, answer_headers, data = self.pass_on(method, path, headers, body)
        if fault == "unanswered":
            return False
        if fault == "truncated" and data:
            self.answer(code, answer_headers, data, send=len(data) // 2)
            return False
        return self.answer(code, answer_headers, data)

    def pass_on(self, method, path, headers, body):
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port_behind, timeout=60)
        connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
        for name, value in headers:
            connection.putheader(name, value)
        connection.endheaders(body)
        answer = connection.getresponse()
        data = answer.read()
        connection.close()
        dropped = ("transfer-encoding", "content-length", "connection")
        kept = [(n, v) for n, v in answer.getheaders() if n.lower() not in dropped]
        return answer.status, kept, data

    def answer(self, code, headers, data, send=None):
        lines = [f"HTTP/1.1 {code} {http.client.responses.get(code, 'Answer')}"]
        lines += [f"{name}: {value}" for name, value in headers]
        if code != 204:
            lines.append(f"Content-Length: {len(data)}")
        head = "\r\n".join([*lines, "", ""]).encode()
        self.wfile.write(head + data[: len(data) if send is None else send])
        return True


class FaultyProxy(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, port_behind, seed):
        super().__init__(("127.0.0.1", 0), Handler)
        self.port_behind = port_behind
        self.random = random.Random(seed)
        self.lock = threading.Lock()
        self.counts = collections.Counter()

    @property
    def endpoint(self):
        return f"http://127.0.0.1:{self.server_address[1]}"

    def draw(self, is_creation):
        with self.lock:
            fault = ""
            number = self.random.random()
            for name, share in FAULTS.items():
                if name == "409" and not is_creation:
                    continue
                number -= share
                if number < 0:
                    fault = name
                    break
            self.counts[fault or "none"] += 1
            return fault


@contextlib.contextmanager
def faulty_proxy(port_behind, seed):
    with FaultyProxy(port_behind, seed) as proxy:
        thread = threading.Thread(target=proxy.serve_forever, daemon=True)
        thread.start()
        try:
            yield proxy
        finally:
            proxy.shutdown()
            thread.join()
