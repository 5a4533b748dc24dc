"""A small, fast server of S3 for benchmarks: listings, HEAD, and GET with Range and If-Match.

moto answers about 120 requests a second, which would be all that a benchmark measures. This one
checks no signatures, answers each request after a fixed latency, and has the kernel send the files,
so that it takes as little as it can of the cores that it shares with what is measured.
"""

import argparse
import asyncio
import functools
import hashlib
import urllib.parse
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

WHEN = "Mon, 01 Jan 2024 00:00:00 GMT"
PAGE = 1000  # keys of a listing, S3's own limit
PART = 8 << 20  # bytes; aws-cli and boto3 send larger files in parts of this size


class Objects:
    """The files below a directory whose sub-directories are the buckets."""

    def __init__(self, root: Path, in_parts: bool) -> None:
        """Reads each file once, for its ETag and so that it is in the page cache.

        Args:
          root: the directory.
          in_parts: ETags of large objects are such as if they had been sent in parts, as nearly all
            are: an MD5 of MD5s. Else they are MD5s, which some clients compare.
        """
        self._files: dict[str, tuple[Path, int, str]] = {}
        for path in sorted(path for path in root.rglob("*") if path.is_file()):
            content = path.read_bytes()
            tag = _md5(content).hexdigest()
            if in_parts and len(content) > PART:
                parts = [content[at : at + PART] for at in range(0, len(content), PART)]
                tag = f"{_md5(b''.join(_md5(p).digest() for p in parts)).hexdigest()}-{len(parts)}"
            self._files[path.relative_to(root).as_posix()] = (path, len(content), tag)

    def find(self, name: str) -> tuple[Path, int, str] | None:
        """(file, bytes, ETag) of BUCKET/KEY."""
        return self._files.get(name)

    def listing(self, bucket: str, prefix: str, after: str) -> bytes:
        """A page of ListObjectsV2, beginning after a name."""
        begin = f"{bucket}/{prefix}"
        names = [name for name in self._files if name.startswith(begin) and name > after]
        page, more = names[:PAGE], len(names) > PAGE
        rows = ""
        for name in page:
            _, size, tag = self._files[name]
            rows += (
                f"<Contents><Key>{escape(name.partition('/')[2])}</Key>"
                f"<LastModified>2024-01-01T00:00:00.000Z</LastModified><Size>{size}</Size>"
                f"<ETag>&quot;{tag}&quot;</ETag><StorageClass>STANDARD</StorageClass></Contents>"
            )
        if more:
            rows += f"<NextContinuationToken>{escape(page[-1])}</NextContinuationToken>"
        return (
            '<?xml version="1.0"?>'
            '<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
            f"<Name>{bucket}</Name><KeyCount>{len(page)}</KeyCount><MaxKeys>{PAGE}</MaxKeys>"
            f"<IsTruncated>{str(more).lower()}</IsTruncated>{rows}</ListBucketResult>"
        ).encode()


def _md5(content: bytes) -> Any:
    return hashlib.md5(content, usedforsecurity=False)


async def answer(
    objects: Objects, latency: float, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """The requests of one connection, one after the other."""
    try:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            await asyncio.sleep(latency)
            request, *lines = head.split("\r\n")
            method, target, _ = request.split(" ")
            fields = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in lines)}
            await reply(objects, method, target, fields, writer)
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()


async def reply(
    objects: Objects, method: str, target: str, asked: dict[str, str], writer: Any
) -> None:
    """The answer to one request."""
    path, _, text = target.partition("?")
    path = urllib.parse.unquote(path).strip("/")
    query = dict(urllib.parse.parse_qsl(text, keep_blank_values=True))
    if "list-type" in query:
        after = query.get("continuation-token", "")
        send(writer, 200, {}, objects.listing(path, query.get("prefix", ""), after))
        return
    found = objects.find(path)
    if found is None:
        send(writer, 404, {}, b"" if method == "HEAD" else b"<Error><Code>NoSuchKey</Code></Error>")
        return
    file, size, tag = found
    if asked.get("if-match", tag).strip('"') != tag:
        send(writer, 412, {}, b"<Error><Code>PreconditionFailed</Code></Error>")
        return
    headers = {"ETag": f'"{tag}"', "Last-Modified": WHEN, "Accept-Ranges": "bytes"}
    first, last, status = 0, size - 1, 200
    if "range" in asked:
        begin, _, end = asked["range"].removeprefix("bytes=").partition("-")
        first, last, status = int(begin), min(int(end or size), size - 1), 206
        headers["Content-Range"] = f"bytes {first}-{last}/{size}"
    headers["Content-Length"] = str(last + 1 - first)
    send(writer, status, headers)
    if method == "GET" and size:
        with file.open("rb") as content:
            transport = writer.transport
            await asyncio.get_running_loop().sendfile(transport, content, first, last + 1 - first)


def send(writer: Any, status: int, headers: dict[str, str], body: bytes = b"") -> None:
    """Status, headers and a short body."""
    headers = {"Content-Length": str(len(body)), **headers}
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    writer.write(f"HTTP/1.1 {status} -\r\n{lines}\r\n".encode() + body)


async def serve(objects: Objects, latency: float) -> None:
    """Prints the port, then answers for ever."""
    answering = functools.partial(answer, objects, latency)
    server = await asyncio.start_server(answering, "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("root", type=Path, help="a directory of buckets")
    parser.add_argument("--latency", type=float, default=20, help="of each request, milliseconds")
    parser.add_argument("--in_one_part", action="store_true", help="large ETags are MD5s")
    options = parser.parse_args()
    objects = Objects(options.root, not options.in_one_part)
    asyncio.run(serve(objects, options.latency / 1000))


if __name__ == "__main__":
    main()
