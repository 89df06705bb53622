# SPDX-License-Identifier: Apache-2.0
"""Certificates are verified: a server of S3 that nobody vouches for gets no request."""

import http.server
import os
import ssl
import subprocess
import sys
import threading

import harness

EMPTY = b"<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>"


class Handler(http.server.BaseHTTPRequestHandler):
    requests = 0
    paths = []

    def do_GET(self):
        Handler.requests += 1
        Handler.paths.append(self.path)
        self.send_response(200)
        self.send_header("Content-Length", str(len(EMPTY)))
        self.end_headers()
        self.wfile.write(EMPTY)

    def log_message(self, *_arguments):
        pass


class QuietServer(http.server.ThreadingHTTPServer):
    def handle_error(self, *_arguments):
        pass  # of a client that does not trust the certificate


def make_certificate(folder):
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    harness.command(
        *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
        *("-keyout", key, "-out", certificate, "-subj", "/CN=localhost"),
        *("-addext", "subjectAltName=DNS:localhost"),
        stdin=subprocess.DEVNULL,
    )
    return key, certificate


def main():
    os.environ.update(
        AWS_ACCESS_KEY_ID="mine", AWS_SECRET_ACCESS_KEY="hidden", no_proxy="localhost"
    )
    with harness.clean_folder() as folder:
        key, certificate = make_certificate(folder)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        server = QuietServer(("127.0.0.1", 0), Handler)
        server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"s3://bucket/x?endpoint=https://localhost:{server.server_address[1]}"
        other = url.replace("localhost", "127.0.0.1")  # the certificate does not name it
        for refused, bundle in ((url, ""), (other, str(certificate))):
            environment = {**os.environ, "AWS_CA_BUNDLE": bundle}
            done = harness.varve(
                folder / "store", "pull", refused, expect=harness.FAILED, env=environment
            )
            assert "SSL" in done.stderr and refused in done.stderr, done.stderr
            assert "hidden" not in done.stderr, done.stderr
            assert Handler.requests == 0
        environment = {**os.environ, "AWS_CA_BUNDLE": str(certificate)}
        done = harness.varve(
            folder / "store", "pull", url, expect=harness.NO_STORE, env=environment
        )
        assert "there is no snapshot" in done.stderr, done.stderr
        # The records, and whether there are blobs without any, or parts of them.
        assert Handler.requests == 3, Handler.paths
        server.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
