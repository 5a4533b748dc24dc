"""HTTP requests whose answers are judged: what is worth a retry, what is not, and what is cut."""

import base64
import email.utils
import re
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import unquote, urljoin, urlsplit

from .source import Refused, SourceChanged, Transient

BLOCK = 1 << 20  # bytes handed on at a time
CONNECT_TIMEOUT, READ_TIMEOUT = 10.0, 60.0  # seconds without a connection, without a byte
REDIRECTS = 5
# Timeout, too many requests, and what servers and their gateways answer while they are overloaded.
PASSING = {408, 425, 429, 500, 502, 503, 504}
LOOPBACK = {"localhost", "127.0.0.1", "::1"}


class Web:
    """A pool of connections, used by several threads.

    It goes through the proxies that the environment names. Redirects are followed within the
    scheme alone. No message holds a query, a password or a header.
    """

    def __init__(self, connections: int) -> None:
        """Takes the number of connections to a host that are kept open."""
        self._connections = connections
        self._pools: dict[str, Any] = {}
        self._lock = threading.Lock()

    def get(self, url: str, headers: Mapping[str, str], where: str, listed: bool = True) -> Any:
        """An answer of status 200 or 206, its body unread.

        Args:
          url: may hold secrets: a user and password, a signed query.
          headers: of the request.
          where: what is read, for messages.
          listed: True for a file that was listed, which has changed if it is not there any more.

        Raises:
          Transient: no connection, a timeout, 429, 5xx.
          SourceChanged: 412, or a listed file answers 404.
          Refused: any other status; a redirect to another scheme.
        """
        for _ in range(REDIRECTS + 1):
            answer = self._ask(url, headers, where)
            if answer.status not in (301, 302, 303, 307, 308):
                return _judged(answer, where, listed)
            target = urljoin(url, answer.headers.get("Location", ""))
            drop(answer)
            old, new = urlsplit(url), urlsplit(target)
            local = old.hostname in LOOPBACK
            if new.scheme != old.scheme or (
                new.scheme == "http" and local and new.hostname not in LOOPBACK
            ):
                raise Refused(
                    f"{where}: redirected to {new.scheme}://{new.hostname or ''}, another scheme "
                    "or without protection: give that URL itself if you trust it"
                )
            if new.netloc != old.netloc:  # a password is for the host it was given for
                headers = {k: v for k, v in headers.items() if k.lower() != "authorization"}
            url = target
        raise Refused(f"{where}: redirected more than {REDIRECTS} times: give the last URL itself")

    def close(self) -> None:
        """Closes the connections that nobody reads from."""
        with self._lock:
            for pool in self._pools.values():
                pool.clear()

    def _ask(self, url: str, headers: Mapping[str, str], where: str) -> Any:
        import urllib3  # imported late: --help needs none of it

        parts = urlsplit(url)
        userinfo, _, host = parts.netloc.rpartition("@")
        if userinfo:
            token = base64.b64encode(unquote(userinfo).encode()).decode()
            headers = {**headers, "Authorization": f"Basic {token}"}
        try:
            return self._pool(parts.scheme, host).request(
                "GET",
                parts._replace(netloc=host, fragment="").geturl(),
                headers=dict(headers),
                redirect=False,
                retries=False,
                preload_content=False,
                decode_content=False,
            )
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise Transient(f"{where}: {_reason(error)}") from None

    def _pool(self, scheme: str, host: str) -> Any:
        import urllib3

        proxy = "" if _bypassed(host) else urllib.request.getproxies().get(scheme, "")
        with self._lock:
            if proxy not in self._pools:
                options: dict[str, Any] = {
                    "maxsize": self._connections,
                    "timeout": urllib3.Timeout(connect=CONNECT_TIMEOUT, read=READ_TIMEOUT),
                }
                if proxy:
                    self._pools[proxy] = urllib3.ProxyManager(proxy, **options)
                else:
                    self._pools[proxy] = urllib3.PoolManager(**options)
            return self._pools[proxy]


def blocks(answer: Any, size: int, where: str, stop: threading.Event) -> Iterator[bytes]:
    """The body of an answer, which is read to its end or dropped.

    Where its length is known, all blocks are in the same memory.

    Args:
      answer: of `Web.get`.
      size: bytes expected; -1 where the end of the body is told by the body itself.
      where: what is read, for messages.
      stop: ends the reading.

    Raises:
      Transient: it was cut, or its length is another.
    """
    import urllib3

    count = 0
    try:
        if size >= 0 and answer.headers.get("Content-Length") == str(size):
            buffer = memoryview(bytearray(min(BLOCK, size)))
            while count < size and not stop.is_set():
                block = buffer[: size - count]
                fill(answer, block, where)
                count += len(block)
                yield block  # type: ignore[misc]
            return
        for block in answer.stream(BLOCK, decode_content=False):
            count += len(block)
            yield block
            if stop.is_set():
                return
        if size not in (-1, count):
            raise Transient(f"{where}: {count} bytes came of {size}")
    except (urllib3.exceptions.HTTPError, OSError) as error:
        raise Transient(f"{where}: {_reason(error)} after {count} bytes") from None
    finally:
        drop(answer)


def fill(answer: Any, buffer: memoryview, where: str) -> None:
    """Reads the next bytes of a body into memory that is there.

    Fresh memory for each block is more work for the kernel than the copying itself: 256 MiB took
    0.4 s of CPU so, and take 0.1 s into one buffer.

    Args:
      answer: of `Web.get`; the caller drops it.
      buffer: is filled to its end.
      where: what is read, for messages.

    Raises:
      Transient: the body ends before.
    """
    import http.client

    import urllib3

    count = 0
    # urllib3's own readinto copies what its read returns. The standard library's, below it, has the
    # kernel write where it is wanted, and decodes chunks too.
    below = getattr(answer, "_fp", None)
    readinto = getattr(below, "readinto", None) or answer.readinto
    try:
        while count < len(buffer) and (more := readinto(buffer[count:])):
            count += more
    except (urllib3.exceptions.HTTPError, http.client.HTTPException, OSError) as error:
        raise Transient(f"{where}: {_reason(error)}") from None
    if count < len(buffer):
        raise Transient(f"{where}: the connection was cut")


def whole(answer: Any, size: int, where: str) -> bytes:
    """The body of an answer at one go, which spares two copies of it; raises as `blocks`."""
    import urllib3

    try:
        content: bytes = answer.read(decode_content=False)
        if len(content) != size:
            raise Transient(f"{where}: {len(content)} bytes came of {size}")
        return content
    except (urllib3.exceptions.HTTPError, OSError) as error:
        raise Transient(f"{where}: {_reason(error)}") from None
    finally:
        drop(answer)


def drop(answer: Any) -> None:
    """Gives the connection back if all was read, and closes it otherwise."""
    if not answer.isclosed():
        answer.close()
    answer.release_conn()


def quoted(tag: str) -> str:
    """An ETag as headers carry it; some listings leave the quotes out."""
    return tag if tag.endswith('"') else f'"{tag}"'


def _judged(answer: Any, where: str, listed: bool) -> Any:
    status = answer.status
    if status in (200, 206):
        return answer
    code = _code(answer)
    drop(answer)
    said = f"{where}: the server answers {status}{code}"
    if status in PASSING:
        raise Transient(said, retry_after(answer.headers.get("Retry-After", "")))
    if status == 412 or (status == 404 and listed):
        raise SourceChanged(f"{where} was replaced or removed since it was listed ({status})")
    if status in (401, 403) or "Token" in code:
        raise Refused(f"{said}: access is denied or has expired: renew the credentials or the URL")
    if status in (404, 410):
        raise Refused(f"{said}: it is not there: check the URL")
    raise Refused(f"{said}: this cannot be read")


def retry_after(header: str) -> float | None:
    """Seconds to wait from now, by a Retry-After header (RFC 9110: seconds, or a date)."""
    if header.strip().isdigit():
        return float(header)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(header).timestamp() - time.time())
    except (TypeError, ValueError):
        return None


def _code(answer: Any) -> str:
    """The error's name in the body of an S3 answer, such as " (ExpiredToken)"."""
    try:
        found = re.search(rb"<Code>(\w{1,60})</Code>", answer.read(4096, decode_content=False))
    except Exception:  # the status alone says enough
        return ""
    return f" ({found[1].decode()})" if found else ""


def _reason(error: Exception) -> str:
    """What went wrong, in words that hold no URL: urllib3's messages hold the whole of it."""
    import urllib3

    kinds = {
        urllib3.exceptions.NewConnectionError: "no connection",
        urllib3.exceptions.ConnectTimeoutError: "no connection in time",
        urllib3.exceptions.ReadTimeoutError: "no answer in time",
        urllib3.exceptions.IncompleteRead: "the connection was cut",
        urllib3.exceptions.ProtocolError: "the connection was cut",
        urllib3.exceptions.SSLError: "no trusted TLS connection",
        urllib3.exceptions.ProxyError: "no connection to the proxy",
        TimeoutError: "no answer in time",
        ConnectionError: "the connection was cut",
    }
    found = next((words for kind, words in kinds.items() if isinstance(error, kind)), "")
    return found or f"the connection failed ({type(error).__name__})"


def _bypassed(host: str) -> bool:
    return host.partition(":")[0] in LOOPBACK or bool(urllib.request.proxy_bypass(host))
