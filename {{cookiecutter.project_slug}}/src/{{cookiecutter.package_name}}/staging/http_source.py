"""http(s)://: one file, or a prepared data set by the URL of its manifest.json."""

import hashlib
import json
import re
import threading
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from ..errors import UserError
from .reading import Reading
from .source import Entry, Refused, SourceChanged, checked_path, included, public_url
from .web import LOOPBACK, blocks, drop

MANIFEST = "manifest.json"
LARGEST_MANIFEST = 256 << 20  # bytes: two million shards


class HTTPSource:
    """A file; or, where the URL ends in /manifest.json, that manifest and the shards it lists.

    Index pages are not followed: they are written for people and name neither versions nor sizes.
    """

    workers = 16

    def __init__(self, url: str, include: str = "") -> None:
        """Connects to nothing yet.

        Raises:
          UserError: no file is named; http:// to another host, for content that has no checksum.
        """
        self.url = public_url(url)
        self._secret, self._include = url, include
        parts = urlsplit(url)
        self._name = unquote(parts.path).rpartition("/")[2]
        if not self._name:
            raise UserError(
                f"{self.url} names no file, and index pages are not followed: give a file's URL, "
                f"or that of a prepared data set's {MANIFEST}"
            )
        if parts.scheme == "http" and parts.hostname not in LOOPBACK and self._name != MANIFEST:
            raise UserError(
                f"{self.url}: http:// has no protection against change on the way: use https://, "
                f"or a prepared data set's {MANIFEST}, which holds checksums"
            )
        self._reading = Reading(self.workers)
        self._manifest = b""
        self._ranged = False

    def list(self) -> list[Entry]:
        """The file; or the manifest and its shards.

        Raises:
          Transient, Refused: as `Source.list`.
        """
        if self._name == MANIFEST:
            return [one for one in self._shards() if included(one.path, self._include)]
        # The first byte, not HEAD: a signed URL is signed for GET alone.
        answer = self._get(self._secret, {"Range": "bytes=0-0"}, listed=False)
        headers, status = answer.headers, answer.status
        drop(answer)
        total = re.fullmatch(r"bytes 0-0/(\d+)", headers.get("Content-Range", ""))
        if status == 206 and total is None:
            raise Refused(f"{self.url}: the server gives no length: a cut copy would look whole")
        length = total[1] if total else headers.get("Content-Length", "")
        chunked = headers.get("Transfer-Encoding", "").lower() == "chunked"
        if not length.isdigit() and not chunked:
            raise Refused(f"{self.url}: the server gives no length: a cut copy would look whole")
        identity = _version(headers)
        self._ranged = status == 206 and bool(identity)
        size = int(length) if length.isdigit() else -1
        return [Entry(checked_path(self._name, self.url), size, identity)]

    def fetch(self, entry: Entry, stop: threading.Event) -> Iterator[bytes]:
        """The content; that of a shard is compared with the manifest by whoever writes it.

        Raises:
          SourceChanged, Transient, Refused: as `Source.fetch`.
        """
        if self._name == MANIFEST:
            return self._fetch_listed(entry, stop)

        def check(answer: Any) -> None:
            self._plain(answer)
            if _version(answer.headers) != entry.identity:
                raise SourceChanged(f"{self.url} was replaced since it was listed")

        return self._reading.read(
            lambda: (self._secret, {"Accept-Encoding": "identity"}),
            entry.size,
            self.url,
            check,
            stop,
            ranged=self._ranged,
        )

    def expect(self, entries: Iterable[Entry], workers: int) -> None:
        """Takes what will be fetched, and by how many threads."""
        self._reading.expect((entry.size for entry in entries), workers)

    def close(self) -> None:
        """Lets go of threads and connections."""
        self._reading.close()

    def _shards(self) -> Iterator[Entry]:
        answer = self._get(self._secret, {}, listed=False)
        content = b""
        for block in blocks(answer, -1, self.url, threading.Event()):
            content += block
            if len(content) > LARGEST_MANIFEST:
                raise Refused(f"{self.url} is larger than a manifest: check the URL")
        self._manifest = content
        digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
        yield Entry(MANIFEST, len(content), digest, digest)
        try:
            shards = [row for rows in json.loads(content)["splits"].values() for row in rows]
            for row in shards:
                checksum = f"crc32:{row['crc32']:08x}"
                path = checked_path(row["file"], self.url)
                yield Entry(path, int(row["bytes"]), checksum, checksum)
        except (ValueError, KeyError, TypeError, AttributeError):
            raise Refused(f"{self.url} is no manifest of a prepared data set: check it") from None

    def _fetch_listed(self, entry: Entry, stop: threading.Event) -> Iterator[bytes]:
        if entry.path == MANIFEST:
            return iter([self._manifest])
        parts = urlsplit(self._secret)
        path = parts.path.removesuffix(MANIFEST) + quote(entry.path)
        return self._reading.read(
            lambda: (parts._replace(path=path).geturl(), {"Accept-Encoding": "identity"}),
            entry.size,
            f"{self.url}: {entry.path}",
            self._plain,
            stop,
            ranged=False,  # its version is not known before it is read; shards are many
        )

    def _get(self, url: str, headers: Mapping[str, str], listed: bool) -> Any:
        headers = {"Accept-Encoding": "identity", **headers}
        answer = self._reading.web.get(url, headers, self.url, listed)
        self._plain(answer)
        return answer

    def _plain(self, answer: Any) -> None:
        coding = answer.headers.get("Content-Encoding", "identity").lower()
        if coding != "identity":
            drop(answer)
            raise Refused(f"{self.url}: the server sends it as {coding!r}, not as it is stored")


def _version(headers: Mapping[str, str]) -> str:
    """What changes when the file does: a strong ETag, or else the time of its last change.

    A weak ETag, "W/...", only says that two contents may stand for each other.
    """
    tag = headers.get("ETag", "")
    return tag if tag and not tag.startswith("W/") else headers.get("Last-Modified", "")
