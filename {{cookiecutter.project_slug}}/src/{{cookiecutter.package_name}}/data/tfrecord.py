"""TFRecord files and `tf.train.Example` without TensorFlow, which takes 4 s and 400 MB to start.

A record is: its length (8 bytes, little-endian), the length's checksum (4), the data, the data's
checksum (4). The checksums are CRC-32C, masked as TensorFlow's `core/lib/hash/crc32c.h` does. An
Example is a protocol buffer of `core/example/example.proto` and `feature.proto`.
"""

import os
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path

import google_crc32c

HEADER, FOOTER = 12, 4  # bytes around the data
KINDS = {1: bytes, 2: float, 3: int}  # by the field of `Feature` that holds the values


class Damaged(ValueError):
    """A record that is not what was written. The message says what is wrong with it."""


def frame(record: bytes) -> bytes:
    """A record as it stands in a file."""
    length = struct.pack("<Q", len(record))
    return b"".join((length, _checksum(length), record, _checksum(record)))


def spans(path: Path | str) -> Iterator[tuple[int, int]]:
    """(offset, length) of the data of every record, from the headers alone.

    Raises:
      Damaged: a header fails its checksum, or the file ends within a record.
    """
    with open(path, "rb", buffering=0) as file:
        descriptor, size, position = file.fileno(), os.fstat(file.fileno()).st_size, 0
        while position < size:
            header = os.pread(descriptor, HEADER, position)
            if len(header) < HEADER:
                raise Damaged("the file ends within its header")
            if _checksum(header[:8]) != header[8:]:
                raise Damaged("its length fails its checksum, or the file is no TFRecord file")
            length = struct.unpack("<Q", header[:8])[0]
            if position + HEADER + length + FOOTER > size:
                raise Damaged("the file ends within it")
            yield position + HEADER, length
            position += HEADER + length + FOOTER


def read(path: Path | str, offset: int, length: int) -> bytes:
    """The data of one record.

    Raises:
      Damaged: it fails its checksum.
    """
    with open(path, "rb", buffering=0) as file:
        block = os.pread(file.fileno(), length + FOOTER, offset)
    if len(block) != length + FOOTER or _checksum(block[:length]) != block[length:]:
        raise Damaged("its data fail their checksum")
    return block[:length]


def encode_example(features: Mapping[str, bytes | int | float]) -> bytes:
    """An Example with one value a feature, byte for byte as TensorFlow serializes it.

    Args:
      features: by name; the type of a value is the type of its list.
    """
    entries = []
    for name, value in sorted(features.items()):  # as deterministic serialization sorts a map
        if isinstance(value, bytes):
            kind, values = 1, _field(1, value)
        elif isinstance(value, float):
            kind, values = 2, _field(1, struct.pack("<f", value))
        else:
            kind, values = 3, _field(1, _varint(value & 0xFFFFFFFFFFFFFFFF))
        entries.append(_field(1, _field(1, name.encode()) + _field(2, _field(kind, values))))
    return _field(1, b"".join(entries))


def decode_example(serialized: bytes) -> dict[str, bytes | int | float]:
    """The first value of every feature of an Example; a feature without any is left out.

    Raises:
      Damaged: it is no Example.
    """
    found: dict[str, bytes | int | float] = {}
    try:
        for entry in _nested(memoryview(serialized), 1):
            for pair in _nested(entry, 1):
                parts = dict(_fields(pair))
                for kind, values in _fields(parts[2]) if 2 in parts else ():
                    first = next((value for number, value in _fields(values) if number == 1), None)
                    if first is not None:
                        found[bytes(parts[1]).decode()] = _value(KINDS[kind], first)
    except (IndexError, KeyError, TypeError, ValueError, struct.error):
        raise Damaged("it is no tf.train.Example") from None
    return found


def _checksum(data: bytes) -> bytes:
    crc = google_crc32c.value(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def _varint(value: int) -> bytes:
    digits = bytearray()
    while value > 0x7F:
        digits.append(value & 0x7F | 0x80)
        value >>= 7
    digits.append(value)
    return bytes(digits)


def _field(number: int, data: bytes) -> bytes:
    return bytes([number << 3 | 2]) + _varint(len(data)) + data


def _value(kind: type, value: "int | memoryview") -> bytes | int | float:
    """A value of a list, of which numbers are packed or not."""
    if kind is bytes:
        return bytes(value)  # type: ignore[arg-type]
    if kind is float:
        return struct.unpack_from("<f", value)[0]  # type: ignore[arg-type]
    number = value if isinstance(value, int) else _read_varint(value, 0)[0]
    return number - (1 << 64) if number >> 63 else number


def _nested(data: memoryview, number: int) -> Iterator[memoryview]:
    return (value for found, value in _fields(data) if found == number)


def _fields(data: memoryview) -> Iterator[tuple[int, memoryview]]:
    """(number, value) of a message's fields; the value of a varint is an int."""
    position = 0
    while position < len(data):
        tag, position = _read_varint(data, position)
        wire = tag & 7
        if wire == 0:
            value, position = _read_varint(data, position)
            yield tag >> 3, value  # type: ignore[misc]
            continue
        if wire == 2:
            length, position = _read_varint(data, position)
        else:
            length = {1: 8, 5: 4}[wire]
        if position + length > len(data):
            raise ValueError("cut short")
        yield tag >> 3, data[position : position + length]
        position += length


def _read_varint(data: memoryview, position: int) -> tuple[int, int]:
    value, shift = 0, 0
    while True:
        digit = data[position]
        position += 1
        value |= (digit & 0x7F) << shift
        if digit < 0x80:
            return value, position
        shift += 7
