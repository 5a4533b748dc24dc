"""s3://: objects listed and signed for by obstore, read in the version listed."""

import datetime
import hashlib
import os
import re
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ..errors import UserError
from .readers import Readers
from .reading import Reading
from .source import Entry, Refused, SourceChanged, Transient, checked_path, included, public_url
from .web import CONNECT_TIMEOUT, PASSING, READ_TIMEOUT, quoted

# Signatures are made for each request: this is the time that one request may take to begin.
SIGNED_FOR = datetime.timedelta(minutes=15)
# With 64 threads 1,000 objects of 100 kB took 0.9 s here, with 128 as long, with 32 a little more.
SMALL_READS = 64
# Where credentials are said by these, boto3 is not asked: importing it takes 0.3 s.
OBSTORE_READS = {"AWS_ACCESS_KEY_ID", "AWS_WEB_IDENTITY_TOKEN_FILE"}


class S3Source:
    """A prefix or an object of a bucket.

    Small objects are read by obstore, in Rust: 1,000 of 100 kB at 20 ms of latency took 0.9 s,
    those of s3fs 5 s. What it could not read, and every big object, is read through URLs that it
    signs, as there the answer's headers can be seen: when to try again, and whether the ETag is an
    MD5. The environment gives credentials, region and endpoint, as it does to AWS's own tools; with
    boto3, its files do too.
    """

    workers = 16
    small = 1 << 20  # bytes; SMALL_READS of them are at most in memory
    group = 64  # small objects handed to a thread at a time

    def __init__(self, url: str, include: str = "") -> None:
        """Connects to nothing yet.

        Raises:
          UserError: no bucket in the URL, or a password; obstore is not installed.
        """
        self.url = public_url(url).rstrip("/")
        bucket, _, prefix = url.removeprefix("s3://").partition("/")
        if not bucket or "@" in bucket:
            raise UserError(
                f"{self.url}: write s3://BUCKET/PREFIX, and keep credentials in AWS_ACCESS_KEY_ID "
                "and AWS_SECRET_ACCESS_KEY"
            )
        self._bucket, self._prefix, self._include = bucket, prefix.strip("/"), include
        self._single = False
        self._store, self._address, self._signs = _store(bucket, self.url)
        self._reading = Reading(self.workers)
        self._readers = Readers(SMALL_READS)
        self._sealed = False  # an object was met whose ETag is no MD5, as its key is KMS's

    def list(self) -> list[Entry]:
        """Every object below the prefix, or the object it names.

        Raises:
          Transient, Refused: as `Source.list`.
        """
        import obstore

        try:
            batches = obstore.list(self._store, prefix=self._prefix or None)
            found = [one for batch in batches for one in batch if self._wanted(one["path"])]
            self._single = not found and bool(self._prefix)
            if self._single:
                found = [obstore.head(self._store, self._prefix)]
            return [self._entry(one) for one in found if one["size"] or self._is_file(one["path"])]
        except (obstore.exceptions.BaseError, FileNotFoundError, PermissionError) as error:
            raise _explained(error, self.url) from None

    def fetch(self, entry: Entry, stop: threading.Event) -> Iterator[bytes]:
        """The content, compared with the MD5 that the ETag of an object in one part is.

        Raises:
          SourceChanged, Transient, Refused: as `Source.fetch`.
        """
        sealed = False

        def check(answer: Any) -> None:
            nonlocal sealed
            tag = answer.headers.get("ETag", "").strip('"')
            if tag and tag != entry.identity:
                raise SourceChanged(f"{self.url}: {entry.path} was replaced since it was listed")
            sealed = sealed or _is_sealed(answer.headers)

        md5 = _md5(entry)
        where = f"{self.url}: {entry.path}"
        for block in self._reading.read(
            lambda: self._request(entry), entry.size, where, check, stop
        ):
            if md5 and not sealed:
                md5.update(block)
            yield block
        if sealed:
            self._sealed = True
        elif md5 and md5.hexdigest() != entry.identity and not stop.is_set():
            raise Transient(f"{where}: what came is not what its ETag, an MD5, says")

    def fetch_small(
        self, entries: Sequence[Entry], stop: threading.Event
    ) -> Iterator[tuple[Entry, bytes]]:
        """Small objects; those that fail in any way are left out, for `fetch` to find out why."""
        import obstore

        def read(entry: Entry) -> bytes:
            pin: Any = {"if_match": quoted(entry.identity)}
            content = obstore.get(self._store, self._key(entry), options=pin).bytes().to_bytes()
            md5 = _md5(entry)
            if md5:
                md5.update(content)
                if md5.hexdigest() != entry.identity:
                    raise ValueError("not its MD5")
            return content

        if self._sealed:
            return
        for entry, content in self._readers.in_order(entries, read, stop):
            if content.exception() is None and len(content.result()) == entry.size:
                yield entry, content.result()

    def expect(self, entries: Iterable[Entry], workers: int) -> None:
        """Takes what will be fetched, and by how many threads."""
        self._reading.expect((entry.size for entry in entries), workers)

    def close(self) -> None:
        """Lets go of threads and connections."""
        self._readers.close()
        self._reading.close()

    def _request(self, entry: Entry) -> tuple[str, Mapping[str, str]]:
        import obstore

        key = self._key(entry)
        if self._signs:
            url = obstore.sign(self._store, "GET", key, SIGNED_FOR)
        else:
            import urllib.parse

            url = f"{self._address}/{urllib.parse.quote(key)}"
        return url, {"If-Match": quoted(entry.identity)}

    def _key(self, entry: Entry) -> str:
        if self._single:
            return self._prefix
        return f"{self._prefix}/{entry.path}" if self._prefix else entry.path

    def _path(self, key: str) -> str:
        return key[len(self._prefix) :].lstrip("/") or key.rpartition("/")[2]

    def _wanted(self, key: str) -> bool:
        return included(self._path(key), self._include)

    def _is_file(self, key: str) -> bool:
        """Whether there is an object of that name: obstore lists "a/", a directory, as "a"."""
        import obstore

        try:
            obstore.head(self._store, key)
        except FileNotFoundError:
            return False
        return True

    def _entry(self, one: Mapping[str, Any]) -> Entry:
        tag = (one["e_tag"] or "").strip('"')
        if not tag:
            raise Refused(f"{self.url}: the server lists no ETag, so nothing could be pinned to it")
        return Entry(checked_path(self._path(one["path"]), self.url), one["size"], tag)


def _store(bucket: str, where: str) -> tuple[Any, str, bool]:
    """obstore's store of a bucket, the bucket's own URL, and whether requests are signed."""
    try:
        from obstore.store import S3Store
    except ImportError:
        raise UserError(f"{where}: s3:// needs obstore: pip install obstore boto3") from None
    environment = os.environ
    endpoint = environment.get("AWS_ENDPOINT_URL_S3") or environment.get("AWS_ENDPOINT_URL", "")
    region = environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION", "")
    provider, anonymous = None, "AWS_NO_SIGN_REQUEST" in environment
    if not anonymous and not (OBSTORE_READS & set(environment)):
        provider, region, anonymous = _from_boto3(region)
    region = region or "us-east-1"
    # Every server understands the bucket in the path; AWS's certificates have no names for others.
    address = f"{endpoint.rstrip('/')}/{bucket}" if endpoint else ""
    options: dict[str, Any] = {"virtual_hosted_style_request": False, "region": region}
    if endpoint:
        options["endpoint"] = endpoint
    if provider is not None:
        options["credential_provider"] = provider
    store = S3Store(
        bucket,
        skip_signature=anonymous,
        client_options={
            "allow_http": endpoint.startswith("http://"),
            "connect_timeout": f"{CONNECT_TIMEOUT:.0f}s",
            "timeout": f"{READ_TIMEOUT:.0f}s",
        },
        # Retries are counted, spaced and said in one place, which is not here.
        retry_config={"max_retries": 0},
        **options,
    )
    return store, address or f"https://s3.{region}.amazonaws.com/{bucket}", not anonymous


def _from_boto3(region: str) -> tuple[Any, str, bool]:
    """A provider of credentials, the region, and True if there are none: a public bucket then."""
    try:
        import boto3
        from obstore.auth.boto3 import Boto3CredentialProvider
    except ImportError:
        return None, region, False  # obstore asks the machine or the container it runs in
    session = boto3.Session()
    if session.get_credentials() is None:
        return None, region or session.region_name or "", True
    return Boto3CredentialProvider(session), region or session.region_name or "", False


def _md5(entry: Entry) -> Any:
    """A running MD5 where the ETag looks like one: of an object that was not put in parts."""
    if re.fullmatch("[0-9a-f]{32}", entry.identity):
        return hashlib.md5(usedforsecurity=False)
    return None


def _is_sealed(headers: Mapping[str, str]) -> bool:
    """Whether the object is encrypted by a key of KMS or the customer: its ETag is no MD5 then."""
    kind = "x-amz-server-side-encryption"
    return headers.get(kind, "").startswith("aws:kms") or f"{kind}-customer-algorithm" in headers


def _explained(error: Exception, where: str) -> Exception:
    """The error of a listing, without its text: that holds the whole request."""
    import obstore

    found = re.search(r"status code: (\d{3})", str(error))
    status = int(found[1]) if found else 0
    code = re.search(r"<Code>(\w{1,60})</Code>", str(error))
    said = f"{where}: the server answers {status}" + (f" ({code[1]})" if code else "")
    if isinstance(error, obstore.exceptions.InvalidPathError):
        return Refused(
            f"{where}: a name in it has an empty part, '.', '..' or a control character: rename it"
        )
    if status in (401, 403) or (code and "Token" in code[1]):
        return Refused(f"{said}: access is denied or has expired: renew the credentials")
    if status == 404 or isinstance(error, FileNotFoundError):
        return Refused(f"{said}: there is nothing by that name: check the URL")
    if status in (301, 307):
        return Refused(f"{said}: the bucket is in another region: set AWS_REGION")
    if status in PASSING or not status:
        return Transient(said if status else f"{where}: no connection, or it was cut")
    return Refused(f"{said}: this cannot be listed")
