"""Staging beside its peers: whole commands in turn, the clock stopped when all is on the disk.

From a server of S3 with a latency: s5cmd and rclone. From a local directory: cp, rsync and
rclone. Every copy is compared with its original.
"""

import argparse
import dataclasses
import filecmp
import json
import os
import random
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from photo_sets import IN_PLACE, PACKAGE
from report import intervals

HERE = Path(__file__).resolve().parent
REGION = "us-east-1"
# name: (files, bytes of each)
SETS = {
    "large": (4, 64 << 20),
    "small": (1000, 100_000),
    "shards": (8, 64 << 20),
    "files": (5000, 20_000),
}
# what, from where, against, at most this ratio of times: issue 5, "Done when"
TARGETS = (
    ("small", "s3", ("s5cmd",), 1.3),
    ("large", "s3", ("s5cmd", "rclone"), 1.1),
    ("shards", "disk", ("cp",), 1 / 0.9),
    ("shards", "disk", ("rsync",), 1.0),
    ("shards", "disk", ("rclone",), 1.0),
    ("files", "disk", ("cp",), 1.5),
)


@dataclasses.dataclass
class Result:
    """A contender's times, one a round, or the reason why it has none."""

    seconds: list[float] = dataclasses.field(default_factory=list)
    cpu: list[float] = dataclasses.field(default_factory=list)
    error: str = ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7, help="of all contenders in turn")
    parser.add_argument("--latency", type=float, default=20, help="of the S3 server, milliseconds")
    parser.add_argument("--only", default="", help="one of the sets: " + ", ".join(SETS))
    parser.add_argument("--in_one_part", action="store_true", help="the S3 server's large objects")
    parser.add_argument("--where", type=Path, help="a directory on the disk to measure")
    parser.add_argument("--out", type=Path, help="where staging.json is written")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-staging-", dir=options.where) as directory:
        place = Path(directory)
        (place / "code").mkdir()
        (place / "code" / IN_PLACE).symlink_to(PACKAGE)
        found = {}
        for name in (options.only,) if options.only else SETS:
            kind = "s3" if name in ("small", "large") else "disk"
            make(place / "data" / name, *SETS[name])
            with source(place, kind, options) as environment:
                commands = contenders(kind, place / "data", name, environment)
                found[name] = measure(commands, place, name, options.rounds, environment)
            shutil.rmtree(place / "data" / name)
            show(name, kind, found[name])
    if options.out:
        rows = {n: {c: dataclasses.asdict(r) for c, r in rows.items()} for n, rows in found.items()}
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


def make(directory: Path, count: int, size: int) -> None:
    """Files of noise, which no file system and no client can make smaller."""
    directory.mkdir(parents=True)
    for number in range(count):
        (directory / f"{number:05}.bin").write_bytes(random.Random(number).randbytes(size))


@contextmanager
def source(place: Path, kind: str, options: argparse.Namespace) -> Iterator[dict[str, str]]:
    """The environment of the commands, with a server that answers meanwhile where one is needed."""
    environment = {**os.environ, "PYTHONPATH": str(place / "code"), "PYTHONDONTWRITEBYTECODE": ""}
    # As an installed package has it: its modules are compiled once, not in every round.
    environment["PYTHONPYCACHEPREFIX"] = str(place / "compiled")
    if kind == "disk":
        yield environment
        return
    command = [
        sys.executable,
        str(HERE / "s3_server.py"),
        str(place),
        f"--latency={options.latency}",
    ]
    command += ["--in_one_part"] if options.in_one_part else []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout
        endpoint = f"http://127.0.0.1:{int(server.stdout.readline())}"
        aws = {
            "AWS_ACCESS_KEY_ID": "me",
            "AWS_SECRET_ACCESS_KEY": "mine",
            "AWS_REGION": "us-east-1",
        }
        rclone = {"TYPE": "s3", "PROVIDER": "Other", "ENV_AUTH": "true", "LIST_VERSION": "2"}
        rclone |= {"ENDPOINT": endpoint, "REGION": REGION}
        environment |= {**aws, "AWS_ENDPOINT_URL": endpoint, "S3_ENDPOINT_URL": endpoint}
        environment |= {f"RCLONE_CONFIG_BENCH_{name}": value for name, value in rclone.items()}
        try:
            yield environment
        finally:
            server.kill()


def contenders(
    kind: str, data: Path, name: str, environment: dict[str, str]
) -> dict[str, list[str]]:
    """The commands, each with DST for the directory it copies to."""
    environment |= {"RCLONE_CONFIG": os.devnull}
    ours = [sys.executable, "-m", f"{IN_PLACE}.stage"]
    flags = ["--scratch=DST", "--reserve=0", "--allow_shared"]
    rclone = ["rclone", "copy", "--transfers=32", "--checkers=32"]
    if kind == "s3":
        return {
            "ours": [*ours, f"s3://data/{name}", *flags],
            "s5cmd": ["s5cmd", "cp", f"s3://data/{name}/*", "DST/"],
            "rclone": [*rclone, f"bench:data/{name}", "DST"],
        }
    return {
        "ours": [*ours, str(data / name), *flags],
        "cp": ["cp", "-r", str(data / name), "DST/"],
        "rsync": ["rsync", "-r", str(data / name), "DST/"],
        "rclone": ["rclone", "copy", "--transfers=8", str(data / name), "DST"],
    }


def measure(
    commands: dict[str, list[str]], place: Path, name: str, rounds: int, environment: dict[str, str]
) -> dict[str, Result]:
    """Rounds of all commands, forwards and backwards in turn; one round before them warms up."""
    results = {contender: Result() for contender in commands}
    for number in range(rounds + 1):
        order = list(commands) if number % 2 else list(commands)[::-1]
        for contender in order:
            result = results[contender]
            if result.error:
                continue
            target = place / "copies"
            shutil.rmtree(target, ignore_errors=True)
            target.mkdir()
            subprocess.run(["sync", "-f", str(target)], check=True)  # of the one before
            command = [part.replace("DST", str(target)) for part in commands[contender]]
            result.error = run(command, target, environment, result if number else Result())
            result.error = result.error or compare(place / "data" / name, target)
    shutil.rmtree(place / "copies", ignore_errors=True)
    return results


def run(command: Sequence[str], target: Path, environment: dict[str, str], result: Result) -> str:
    """Runs one command and what brings its writes to the disk; returns why it failed, or ""."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.monotonic()
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
    except FileNotFoundError:
        return f"{command[0]} is not installed"
    subprocess.run(["sync", "-f", str(target)], check=True)
    result.seconds.append(time.monotonic() - began)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    result.cpu.append(used)
    return "" if done.returncode == 0 else f"exit {done.returncode}: {done.stderr.strip()[-200:]}"


def compare(original: Path, target: Path) -> str:
    """Why the copy below `target` is none, or ""."""
    names = sorted(path.name for path in original.iterdir())
    found = {path.name: path for path in target.rglob("*.bin")}
    if sorted(found) != names:
        return f"{len(found)} files came of {len(names)}"
    wrong = [n for n in names if not filecmp.cmp(original / n, found[n], shallow=False)]
    return f"{len(wrong)} files differ" if wrong else ""


def show(name: str, kind: str, results: dict[str, Result]) -> None:
    """A table of medians, and the targets of this set."""
    count, size = SETS[name]
    print(f"\n{name}, from {kind}: {count} files of {size:,} bytes")
    for contender, result in results.items():
        if result.error:
            print(f"  {contender:8} {result.error}")
            continue
        low, high = min(result.seconds), max(result.seconds)
        middle, cpu = statistics.median(result.seconds), statistics.median(result.cpu)
        rate = count * size / middle / 2**20
        print(f"  {contender:8} {middle:6.2f} s ({low:.2f}-{high:.2f}) {rate:6.0f} MiB/s", end="")
        print(f" {cpu:5.2f} CPU-s")
    for what, where, against, most in TARGETS:
        rivals = [results[c] for c in against if c in results and not results[c].error]
        if (what, where) != (name, kind) or not rivals or results["ours"].error:
            continue
        best = min(rivals, key=lambda rival: statistics.median(rival.seconds))
        ratio = intervals.ratio_of(results["ours"].seconds, best.seconds)
        met = "yes" if ratio.mean <= most else "NO"
        print(f"  ours / {' or '.join(against)}: {ratio.mean:.2f}", end=" ")
        print(f"({ratio.low:.2f}-{ratio.high:.2f}); at most {most:.2f}: {met}", flush=True)


if __name__ == "__main__":
    main()
