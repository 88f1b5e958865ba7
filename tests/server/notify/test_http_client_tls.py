"""HTTPS to a checked address: the certificate must be that of the host name."""

from __future__ import annotations

import shutil
import socket
import ssl
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from memagent_server.notify.channel import DeliveryFailedError
from memagent_server.notify.webhook import Webhook


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """(certificate, key) of far.example, signed by itself."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl is not on PATH")
    folder = tmp_path_factory.mktemp("tls")
    command = [openssl, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2", "-subj",
               "/CN=far.example", "-addext", "subjectAltName=DNS:far.example", "-keyout", "key.pem", "-out", "cert.pem"]  # fmt: skip
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return folder / "cert.pem", folder / "key.pem"


@pytest.fixture
def far_end(certificate, monkeypatch):
    """The port of an HTTPS server; far.example and near.example resolve to its address."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_):
            pass

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    server = HTTPServer(("127.0.0.1", 0), Handler)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    server.handle_error = lambda *_: None  # a client that does not like the certificate hangs up
    original = socket.getaddrinfo
    monkeypatch.setattr(socket, "getaddrinfo", lambda host, *args, **options: original(
        "127.0.0.1" if str(host).endswith(".example") else host, *args, **options))  # fmt: skip
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    yield server.server_address[1]
    server.shutdown()
    thread.join()
    server.server_close()


def test_it_accepts_the_hosts_certificate(far_end, certificate, make_message, monkeypatch):
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate[0]))
    assert Webhook(f"https://far.example:{far_end}/x", None, allow_local=True).send(
        make_message()
    ) == {"status": 204}


def test_it_refuses_another_hosts_certificate(far_end, certificate, make_message, monkeypatch):
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate[0]))
    with pytest.raises(DeliveryFailedError, match="certificate is not accepted"):
        Webhook(f"https://near.example:{far_end}/x", None, allow_local=True).send(make_message())


def test_it_refuses_an_untrusted_certificate(far_end, make_message):
    with pytest.raises(DeliveryFailedError, match="certificate is not accepted"):
        Webhook(f"https://far.example:{far_end}/x", None, allow_local=True).send(make_message())
