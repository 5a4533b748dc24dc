"""Checksums: xxh3 of all that is staged, and whatever a source or a list of sums vouches with."""

import hashlib
import threading
import zlib
from collections.abc import Callable
from typing import Any

from ..errors import UserError

BLOCK = 4 << 20  # bytes read at a time
BY_LENGTH = {
    32: "md5",
    40: "sha1",
    64: "sha256",
    128: "sha512",
}  # hexadecimal digits


class _Crc:
    """CRC-32 (zlib) or CRC-32C (Castagnoli), with the interface of hashlib."""

    def __init__(self, extend: Callable[[int, bytes], int]) -> None:
        self._extend, self._value = extend, 0

    def update(self, block: bytes) -> None:
        self._value = self._extend(self._value, block)

    def hexdigest(self) -> str:
        return f"{self._value:08x}"


def running(kind: str) -> Any:
    """A checksum to be fed with `update` and read with `hexdigest`.

    Args:
      kind: xxh3, crc32, crc32c, or a name hashlib knows.
    """
    if kind == "xxh3":
        import xxhash  # imported late: --help needs none of it

        return xxhash.xxh3_128()
    if kind == "crc32":
        return _Crc(lambda value, block: zlib.crc32(block, value))
    if kind == "crc32c":
        import google_crc32c

        # It takes bytes alone, no memoryview.
        return _Crc(lambda value, block: google_crc32c.extend(value, bytes(block)))
    return hashlib.new(kind, usedforsecurity=False)


def xxh3_of_file(path: str, stop: threading.Event) -> str:
    """xxh3 (128 bits, hexadecimal) of a file's content; of a part of it once `stop` is set."""
    total = running("xxh3")
    buffer = memoryview(bytearray(BLOCK))
    with open(path, "rb", buffering=0) as file:
        while (count := file.readinto(buffer)) and not stop.is_set():
            total.update(buffer[:count])
    return str(total.hexdigest())


def read_sums(text: str, where: str) -> dict[str, str]:
    """The lines of a file such as SHA256SUMS: "kind:HEX" by path.

    Args:
      text: lines of `HEX  PATH` or `HEX *PATH`, as sha256sum and md5sum write them.
      where: the file, for the message.

    Raises:
      UserError: a line that is none of these.
    """
    sums = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        escaped = line.startswith("\\")  # then a backslash or line break in the name is written out
        digits, _, path = line.lstrip("\\").partition(" ")
        kind = BY_LENGTH.get(len(digits))
        if kind is None or path[:1] not in (" ", "*") or not path[1:]:
            raise UserError(f"{where}, line {number}: no 'HEX  PATH' as sha256sum writes it")
        path = path[1:]
        if escaped:
            path = path.replace("\\n", "\n").replace("\\\\", "\\")
        sums[path.removeprefix("./")] = f"{kind}:{digits.lower()}"
    return sums
