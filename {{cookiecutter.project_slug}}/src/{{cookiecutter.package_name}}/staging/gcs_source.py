"""gs://: objects of Google Cloud Storage by its JSON interface, read in the generation listed."""

import base64
import json
import os
import threading
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import quote, urlencode

from ..errors import UserError
from .reading import Reading
from .source import Entry, Refused, SourceChanged, Transient, checked_path, included, public_url
from .web import blocks

HOST = "https://storage.googleapis.com"
SCOPE = "https://www.googleapis.com/auth/devstorage.read_only"
FIELDS = "nextPageToken,items(name,size,generation,crc32c,md5Hash)"


class GCSSource:
    """A prefix or an object of a bucket.

    A listing gives each object's generation and checksum. Credentials are the application's default
    ones, by google-auth; without any, a bucket must be public. STORAGE_EMULATOR_HOST is honoured.
    """

    workers = 32

    def __init__(self, url: str, include: str = "") -> None:
        """Connects to nothing yet.

        Raises:
          UserError: no bucket in the URL, or a password.
        """
        self.url = public_url(url).rstrip("/")
        bucket, _, prefix = url.removeprefix("gs://").partition("/")
        if not bucket or "@" in bucket:
            raise UserError(f"{self.url}: write gs://BUCKET/PREFIX, without a password")
        self._bucket, self._prefix, self._include = bucket, prefix.strip("/"), include
        emulator = os.environ.get("STORAGE_EMULATOR_HOST", "").rstrip("/")
        self._host = emulator if "://" in emulator or not emulator else f"http://{emulator}"
        self._credentials = None if self._host else _Credentials(self.url)
        self._host = self._host or HOST
        self._reading = Reading(self.workers)
        self._single = False

    def list(self) -> list[Entry]:
        """Every object below the prefix, or the object it names.

        Raises:
          Transient, Refused: as `Source.list`.
        """
        found = list(self._objects(f"{self._prefix}/" if self._prefix else ""))
        self._single = not found and bool(self._prefix)
        if self._single:
            found = [one for one in self._objects(self._prefix) if one["name"] == self._prefix]
        if not found:
            raise Refused(f"{self.url}: there is nothing by that name: check the URL")
        entries = []
        for one in found:
            path = one["name"] if self._single else one["name"][len(self._prefix) :].lstrip("/")
            path = path.rpartition("/")[2] if self._single else path
            marks_directory = one["name"].endswith("/") and int(one["size"]) == 0
            if not marks_directory and included(path, self._include):
                entries.append(
                    Entry(
                        checked_path(path, self.url),
                        int(one["size"]),
                        str(one["generation"]),
                        _checksum(one),
                    )
                )
        return entries

    def fetch(self, entry: Entry, stop: threading.Event) -> Iterator[bytes]:
        """The content, which whoever writes it compares with the entry's checksum.

        Raises:
          SourceChanged, Transient, Refused: as `Source.fetch`.
        """
        name = self._prefix if self._single else f"{self._prefix}/{entry.path}".lstrip("/")
        url = (
            f"{self._host}/download/storage/v1/b/{quote(self._bucket)}/o/{quote(name, safe='')}"
            f"?alt=media&generation={entry.identity}"
        )
        where = f"{self.url}: {entry.path}"

        def check(answer: Any) -> None:
            given = answer.headers.get("x-goog-generation", entry.identity)
            if given != entry.identity:
                raise SourceChanged(f"{where} was replaced since it was listed")

        # An object that is stored compressed comes as it is stored only to who accepts it so.
        return self._reading.read(
            lambda: (url, {**self._headers(), "Accept-Encoding": "gzip"}),
            entry.size,
            where,
            check,
            stop,
        )

    def expect(self, entries: Iterable[Entry], workers: int) -> None:
        """Takes what will be fetched, and by how many threads."""
        self._reading.expect((entry.size for entry in entries), workers)

    def close(self) -> None:
        """Lets go of threads and connections."""
        self._reading.close()

    def _objects(self, prefix: str) -> Iterator[Mapping[str, Any]]:
        token = ""
        while True:
            query = {"prefix": prefix, "fields": FIELDS, "maxResults": 1000, "pageToken": token}
            url = f"{self._host}/storage/v1/b/{quote(self._bucket)}/o?{urlencode(query)}"
            answer = self._reading.web.get(url, self._headers(), self.url, listed=False)
            text = b"".join(blocks(answer, -1, self.url, threading.Event()))
            try:
                page = json.loads(text)
            except ValueError:
                raise Transient(f"{self.url}: the listing is no JSON") from None
            yield from page.get("items", [])
            token = page.get("nextPageToken", "")
            if not token:
                return

    def _headers(self) -> Mapping[str, str]:
        return self._credentials.headers() if self._credentials else {}


class _Credentials:
    """The application's default credentials; none where there are none."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._lock = threading.Lock()
        self._found: Any = None
        self._asked = False

    def headers(self) -> Mapping[str, str]:
        """What proves who asks, renewed when it has expired."""
        with self._lock:
            if not self._asked:
                self._found, self._asked = self._find(), True
            if self._found is None:
                return {}
            from google.auth import exceptions
            from google.auth.transport.requests import Request

            try:
                if not self._found.valid:
                    self._found.refresh(Request())
            except exceptions.TransportError:
                raise Transient(f"{self._where}: Google's sign-in does not answer") from None
            except exceptions.GoogleAuthError:
                raise Refused(
                    f"{self._where}: Google's sign-in refuses the credentials: renew them with "
                    "gcloud auth application-default login"
                ) from None
            return {"Authorization": f"Bearer {self._found.token}"}

    def _find(self) -> Any:
        try:
            import google.auth
        except ImportError:
            raise UserError(
                f"{self._where}: gs:// needs google-auth: pip install 'google-auth[requests]'"
            ) from None
        try:
            return google.auth.default(scopes=[SCOPE])[0]
        except google.auth.exceptions.DefaultCredentialsError:
            return None


def _checksum(one: Mapping[str, Any]) -> str:
    for kind, name in (("crc32c", "crc32c"), ("md5", "md5Hash")):
        if one.get(name):
            return f"{kind}:{base64.b64decode(one[name]).hex()}"
    return ""
