# SPDX-License-Identifier: Apache-2.0
"""`varve view` as a server: who gets an answer, and how it starts and ends."""

import os
import pathlib
import re
import signal
import socket
import subprocess
import threading
import time
import unittest
import urllib.parse

import harness
import view_case
from view_case import ViewCase

PATIENCE = 200  # seconds, only so that the test ends

CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


class GuardTest(ViewCase):
    """Who gets an answer, and what every answer says besides."""

    def refused(self, answer, says, status=403):
        self.assertEqual(answer[0], status, answer[2])
        self.assertIn(says, answer[2].decode())
        self.assertNotIn(str(self.store), answer[2].decode())
        self.assert_guarded(answer[1])

    def assert_guarded(self, headers):
        self.assertEqual(headers["content-security-policy"], CSP)
        self.assertEqual(headers["x-content-type-options"], "nosniff")
        self.assertEqual(headers["referrer-policy"], "no-referrer")
        self.assertEqual(headers["cache-control"], "no-store")
        self.assertNotIn("access-control-allow-origin", headers)

    def test_the_page_and_its_files(self):
        with self.view() as view:
            types = {"": "text/html", "app.js": "text/javascript", "style.css": "text/css"}
            for name, content_type in types.items():
                status, headers, body = view.request(f"/{view.token}/{name}")
                self.assertEqual(status, 200)
                self.assertEqual(headers["content-type"], content_type + "; charset=utf-8")
                self.assertGreater(len(body), 500)
                self.assert_guarded(headers)
            page = view.request(f"/{view.token}/")[2].decode()
            for forbidden in ("<style", "style=", "onclick", "http://", "https://"):
                self.assertNotIn(forbidden, page)
            self.assertEqual(page.count("<script"), page.count('<script type="module" src='))

    def test_a_missing_or_wrong_token_gets_nothing(self):
        with self.view() as view:
            self.assertRegex(view.token, "^[0-9a-f]{32}$")
            wrong = "0" * 32 if view.token[0] != "0" else "1" * 32
            for path in (
                "/",
                "/api/runs",
                "/app.js",
                f"/{view.token}",
                f"/{view.token}x/api/runs",
                f"/{view.token[:-1]}/api/runs",
                f"/{wrong}/api/runs",
                f"/{view.token.upper()}/x" if view.token.upper() != view.token else "/",
                f"//{view.token}/api/runs",
                f"/x/../{view.token}/api/runs",
                f"/?token={view.token}",
            ):
                self.refused(view.request(path), "the token in the URL is missing or wrong")

    def test_every_view_has_a_token_of_its_own(self):
        with self.view() as one, self.view() as other:
            self.assertNotEqual(one.token, other.token)
            self.assertNotEqual(one.port, other.port)
            self.refused(other.request(f"/{one.token}/api/runs"), "token")

    def test_another_host_or_origin_gets_nothing(self):
        with self.view() as view:
            path = view.api_path("runs")
            for host in (
                "evil.example",
                f"evil.example:{view.port}",
                "127.0.0.1",
                f"127.0.0.1:{view.port + 1}",
                f"127.0.0.1:{view.port}.evil.example",
                "",
            ):
                self.refused(view.request(path, host=host), "answers only as 127.0.0.1")
            ours = f"http://127.0.0.1:{view.port}"
            for origin in (
                "null",
                "http://evil.example",
                "http://127.0.0.1",
                ours + "1",
                "https" + ours[4:],
            ):
                answer = view.request(path, headers={"Origin": origin})
                self.refused(answer, "a page of another origin gets no answer")
            for site in ("cross-site", "same-site", "x"):
                answer = view.request(path, headers={"Sec-Fetch-Site": site})
                self.refused(answer, "a page of another site gets no answer")
            for headers in ({}, {"Origin": ours}, {"Sec-Fetch-Site": "same-origin"}):
                self.assertEqual(view.request(path, headers=headers)[0], 200)
            self.assertEqual(view.request(path, host=f"localhost:{view.port}")[0], 200)

    def test_only_a_link_may_lie_on_another_site(self):
        with self.view() as view:
            link = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
            self.assertEqual(view.request(f"/{view.token}/", headers=link)[0], 200)
            self.refused(view.request(view.api_path("runs"), headers=link), "another site")
            self.refused(view.request(f"/{view.token}/app.js", headers=link), "another site")

    def test_only_get_is_answered(self):
        with self.view() as view:
            for method in ("POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS"):
                body = None if method == "HEAD" else b"{}"
                status, headers, _ = view.request(view.api_path("runs"), method, body=body)
                self.assertIn(status, (400, 405, 413), method)
                self.assert_guarded(headers)
            self.assertEqual(view.request("/", "POST", body=b"{}")[0] // 100, 4)
            self.assertEqual(view.ask("runs"), self.json("runs"))

    def test_no_part_of_an_answer_can_be_asked_for(self):
        """The library would send what lies in memory behind the answer."""
        ranges = ("0-100000", "100-400", "-5", "5-", "0-1,4-9", "9000000000-9000000001")
        with self.view() as view:
            for path in ("/", f"/{view.token}/", f"/{view.token}/app.js", view.api_path("runs")):
                for part in ranges:
                    answer = view.request(path, headers={"Range": f"bytes={part}"})
                    self.assertEqual((answer[0], answer[2]), (416, b""), f"{path} {part}")
                    self.assert_guarded(answer[1])

    def test_nonsense_does_not_end_it(self):
        with self.view() as view:
            for text in (b"\0\0\0\0", b"GET\r\n\r\n", b"GET / HTTP/9\r\n\r\n", b"x" * 100_000):
                with socket.create_connection(("127.0.0.1", view.port)) as connection:
                    try:
                        connection.sendall(text)
                        connection.shutdown(socket.SHUT_WR)
                        connection.recv(1000)
                    except OSError:  # also ENOTCONN: the server has closed it already
                        pass
            self.assertEqual(view.ask("runs"), self.json("runs"))

    def peak_kib(self, view):
        """The most memory that the view has had."""
        status = pathlib.Path(f"/proc/{view.process.pid}/status").read_text(encoding="ascii")
        return int(re.search(r"^VmHWM:\s+(\d+) kB$", status, re.MULTILINE)[1])

    def test_a_request_without_end_takes_no_memory(self):
        """It comes from who has no token: a line, a header and headers that never end."""
        most = 1 << 30
        with self.view() as view:
            view.ask("runs")
            before = self.peak_kib(view)
            for start, part in (
                (b"", b"x" * (1 << 20)),
                (b"GET / HTTP/1.1\r\na: ", b"x" * (1 << 20)),
                (b"GET / HTTP/1.1\r\n", b"a: b\r\n" * (1 << 18)),
            ):
                with socket.create_connection(("127.0.0.1", view.port)) as connection:
                    sent = 0
                    try:
                        connection.sendall(start)
                        while sent < most:
                            connection.sendall(part)
                            sent += len(part)
                    except ConnectionError:
                        pass
                    self.assertLess(sent, most, "all of it was taken")
            self.assertLess(self.peak_kib(view) - before, 50_000)
            self.assertEqual(view.ask("runs"), self.json("runs"))

    def test_who_drips_keeps_nobody_waiting(self):
        """Each of many connections sends a byte now and then, and a new one follows each that ends."""

        def drip(connection, ended):
            while not ended.wait(0.5):
                connection.sendall(b"x")

        self.ask_beside(drip)

    def test_who_asks_without_end_keeps_nobody_waiting(self):
        """Each of many connections asks one whole request after the other, which is refused."""
        most = 1000  # requests of a connection for which nobody else waits
        answered = []  # by each connection that the server has closed

        def ask(connection, ended):
            host = b"Host: 127.0.0.1:%d" % connection.getpeername()[1]
            done = 0
            while not ended.wait(0.05):
                try:
                    connection.sendall(b"GET /api/runs HTTP/1.1\r\n" + host + b"\r\n\r\n")
                    answer = connection.recv(1 << 16)
                except ConnectionError:  # it was closed before the server read this request
                    answer = b""
                if not answer:
                    answered.append(done)
                    return
                done += 1

        def was_closed_early():
            return any(0 < done < most // 10 for done in answered)

        self.ask_beside(ask, until=was_closed_early)
        self.assertTrue(was_closed_early(), answered)

    def ask_beside(self, talk, until=lambda: True):
        """Asks with the token while many connections talk without one, at least until something is so."""
        self.addCleanup(socket.setdefaulttimeout, socket.getdefaulttimeout())
        socket.setdefaulttimeout(PATIENCE)
        with self.view() as view:
            told = self.json("runs")
            ended = threading.Event()

            def talk_until_the_end():
                while not ended.is_set():
                    try:
                        with socket.create_connection(("127.0.0.1", view.port)) as connection:
                            talk(connection, ended)
                    except OSError:
                        pass

            threads = [threading.Thread(target=talk_until_the_end) for _ in range(100)]
            for thread in threads:
                thread.start()
            try:
                ended.wait(1)  # so that they hold all that they can
                for _ in range(5):
                    self.assertEqual(self.ask_in_haste(view), told)
                end = time.monotonic() + PATIENCE
                while not until() and time.monotonic() < end:
                    time.sleep(0.05)
            finally:
                ended.set()
                for thread in threads:
                    thread.join()

    def ask_in_haste(self, view):
        """Asks again if this process was so late with its request that the server had closed."""
        for _ in range(20):
            try:
                return view.ask("runs")
            except ConnectionError:
                pass
        return view.ask("runs")

    def test_only_this_machine_reaches_it(self):
        with self.view() as view:
            sockets = pathlib.Path("/proc/net/tcp").read_text(encoding="ascii")
            self.assertIn(f" 0100007F:{view.port:04X} 00000000:0000 0A ", sockets)  # it listens
            self.assertNotIn(f" 00000000:{view.port:04X} ", sockets)
            sockets = pathlib.Path("/proc/net/tcp6").read_text(encoding="ascii")
            self.assertNotIn(f":{view.port:04X} 00000000000000000000000000000000:0000 0A", sockets)


class LifeTest(ViewCase):
    def test_signals_end_it_and_its_port_is_free(self):
        with self.view() as view:
            port = view.port
            view.ask("runs")
        for number in (signal.SIGTERM, signal.SIGINT):
            with self.view("--port", port) as view:
                self.assertEqual(view.port, port)
                view.ask("runs")
                view.process.send_signal(number)
                self.assertEqual(view.process.wait(PATIENCE), 0)

    def test_it_survives_a_terminal_that_nohup_was_told_of(self):
        before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # the child inherits that
        try:
            view = self.view()
        finally:
            signal.signal(signal.SIGHUP, before)
        with view:
            view.process.send_signal(signal.SIGHUP)
            self.assertEqual(view.ask("runs"), self.json("runs"))
            self.assertIsNone(view.process.poll())

    def test_it_can_be_ended_while_it_opens_the_store(self):
        with socket.create_server(("127.0.0.1", 0)) as silent:
            port = silent.getsockname()[1]
            url = f"s3://bucket/prefix?endpoint=http://127.0.0.1:{port}"
            keys = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
            process = subprocess.Popen(
                [harness.program("varve"), "-s", url, "view"],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=os.environ | keys,
            )
            silent.settimeout(PATIENCE)
            try:
                with silent.accept()[0]:
                    process.send_signal(signal.SIGTERM)
                    _, errors = process.communicate(timeout=PATIENCE)
            except TimeoutError:
                errors = process.communicate(timeout=PATIENCE)[1]
            if b"no engine" in errors:
                self.skipTest("this build has no engine for S3")
            self.assertNotEqual(process.returncode, 0)

    def test_a_port_in_use_is_named(self):
        with self.view() as view:
            self.fails(
                harness.FAILED, "view", "--port", view.port, says=f"port {view.port} of 127.0.0.1"
            )
        self.fails(harness.USAGE, "view", "--port", "65536", says="--port")
        self.fails(harness.USAGE, "view", "--port", "x", says="--port")

    def test_without_a_store_it_ends(self):
        done = harness.varve(self.folder / "nowhere", "view", expect=harness.NO_STORE)
        self.assertIn("nowhere", done.stderr)

    def test_it_says_where_it_is(self):
        process = subprocess.Popen(
            [harness.program("varve"), "-s", str(self.store), "view"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.assertRegex(process.stdout.readline(), r"^http://127\.0\.0\.1:\d+/[0-9a-f]{32}/\n$")
        self.assertIn("until Ctrl-C", process.stderr.readline())
        process.send_signal(signal.SIGINT)
        self.assertEqual((process.communicate(timeout=PATIENCE), process.returncode), (("", ""), 0))

    def opened(self):
        """A view with --open, and the path of the URL that it gives to the browser."""
        tools = self.folder / "tools"
        tools.mkdir()
        seen = self.folder / "seen"
        browser = tools / "xdg-open"
        browser.write_text(f'#!/bin/sh\necho "$@" >{seen}.part\nmv {seen}.part {seen}\n', "utf-8")
        browser.chmod(0o755)
        environment = os.environ | {"PATH": f"{tools}:{os.environ['PATH']}"}
        view = self.enterContext(view_case.View(self.store, "--open", env=environment))
        while not seen.exists():
            self.assertIsNone(view.process.poll())
        url = seen.read_text(encoding="utf-8").strip()
        self.assertTrue(url.startswith(f"http://127.0.0.1:{view.port}/open/"), url)
        return view, urllib.parse.urlsplit(url).path

    def test_open_gives_the_browser_no_secret_that_others_can_use(self):
        """Arguments of a program are public, so the URL among them works once."""
        view, path = self.opened()
        self.assertNotIn(view.token, path)
        for headers in ({"Origin": "http://evil.example"}, {"Sec-Fetch-Site": "cross-site"}):
            self.assertEqual(view.request(path, headers=headers)[0], 403)
        self.assertEqual(view.request(path, host="evil.example")[0], 403)
        self.assertEqual(view.request(path + "0")[0], 403)
        status, _, page = view.request(path)
        self.assertEqual(status, 200)
        self.assertIn(f"url=/{view.token}/", page.decode())
        status, _, text = view.request(path)
        self.assertEqual((status, view.token in text.decode()), (403, False))
        self.assertIn("used already", text.decode())

    @unittest.skipIf(os.geteuid() != 0, "only root can become another user")
    def test_another_user_cannot_use_the_url_of_the_browser(self):
        view, path = self.opened()
        asks = (
            "import http.client, sys;"
            "c = http.client.HTTPConnection('127.0.0.1', int(sys.argv[1]));"
            "c.request('GET', sys.argv[2]); a = c.getresponse(); print(a.status, a.read().decode())"
        )
        other = subprocess.run(
            ["/usr/bin/python3", "-c", asks, str(view.port), path],
            capture_output=True,
            text=True,
            user=65534,
            check=True,
            cwd="/",
        )
        self.assertRegex(other.stdout, "^403 .*of one user")
        self.assertEqual(view.request(path)[0], 200)  # the other has not used it up

    def test_it_writes_nothing_to_the_store(self):
        def content():
            paths = sorted(path for path in self.store.rglob("*") if path.is_file())
            return [(path, path.stat().st_mtime_ns, path.stat().st_size) for path in paths]

        before = content()
        with self.view() as view:
            for what in ("runs", "stats", "health", "space", "sharing"):
                view.ask(what)
            view.ask("check", start=1)
            view.ask("forget", keep_last=1)
        self.assertEqual(content(), before)


if __name__ == "__main__":
    unittest.main()
