"""The input pipeline beside its peers, in one run: `make bench-input`, or see `--help`.

Prints a table; writes input.json, input.md and input.png to build/bench.
"""

import argparse
import importlib.metadata
import json
import os
import platform
import re
import sys
from pathlib import Path
from typing import Any

from measuring import Contender, Failed, call, measure
from photo_sets import ROOT, Sets, make_sets, prepare_command, reshard, say
from report import DALI, DEVICE_PART, KERAS, PIL, done_when, markdown, rows_of

VERSIONS = ("tensorflow-cpu", "keras", "torch", "torchvision", "nvidia-dali-cuda120", "ffcv")
IMAGE_SIZES, SHARD_COUNTS, RECORD_COUNTS = (128, 224, 320), (4, 16, 64), (1_000, 10_000, 50_000)


def main(argv: list[str] | None = None) -> int:
    options = parsed(argv)
    everything = sorted(os.sched_getaffinity(0))
    cores = [int(count) for count in options.cores.split(",") if count] or [len(everything)]
    if max(cores) > len(everything):
        say(f"input.py: --cores={options.cores}: this process may use {len(everything)} CPUs")
        return 2
    try:
        sets = make_sets(
            options.out, options.photos, options.count, options.cache_dir, options.prepared
        )
        results = {
            count: run(
                [
                    contender
                    for contender in contenders(sets, options, everything[:count])
                    if re.search(options.only, contender.name)
                ],
                sets,
                options,
                f"{count}",
            )
            for count in cores
        }
        device = {}
        if not options.only:
            device = call(
                "peers.ours",
                "arithmetic",
                options.out / "arithmetic.log",
                sets.path,
                data=f"records:{sets.jpeg}",
                batch_size=options.batch_size,
                image_size=options.image_size,
            )
        scaling = scaled(sets, options, everything) if options.scaling else {}
    except Failed as failed:
        say(f"input.py: {failed}")
        return 1
    document = {
        "schema": 1,
        "environment": environment(len(everything)),
        "photos": f"photos of {options.photos.name}/" if options.photos else sets.originals,
        "against": options.against,
        **{name: getattr(options, name) for name in ("batch_size", "image_size", "rounds")},
        "seconds": options.seconds,
        "rows": {
            f"{count} core{'s' * (count > 1)}": rows_of(rows, options.against)
            for count, rows in results.items()
        },
        "done_when": done_when(results[max(cores)]),
        "device": device,
        "scaling": scaling,
    }
    text = markdown(document)
    (options.out / "input.json").write_text(json.dumps(document, indent=1) + "\n")
    (options.out / "input.md").write_text(text)
    print(text)
    if not options.no_plot:
        from plot import draw

        draw(document, options.out / "input.png")
    print(options.out / "input.json")
    return 0


def parsed(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    add = parser.add_argument
    add("--photos", type=Path, help="your own photos: a directory of class directories")
    add("--count", type=int, default=4_000, help="how many synthetic photos otherwise")
    add("--cache_dir", type=Path, help="where synthetic photos are kept, as for train")
    add("--prepared", type=Path, help="holds jpeg256/ and raw256/; made if it does not")
    add("--out", type=Path, default=ROOT / "build" / "bench", help="for all that is written")
    add("--rounds", type=int, default=5, help="windows of each contender; two or more")
    add("--seconds", type=float, default=3.0, help="of a window, at least")
    add("--batch_size", type=int, default=64)
    add("--image_size", type=int, default=224, help="side of the crops in pixels")
    add("--cores", default="", help="numbers of CPU cores to measure on, such as 1,2; default: all")
    add("--only", default="", help="contenders whose name this regular expression finds")
    add("--against", default=PIL, help="the contender that ratios are taken to")
    add("--scaling", action="store_true", help="also image sizes, shard counts, sizes of the set")
    add("--no_plot", action="store_true")
    options = parser.parse_args(argv)
    if options.rounds < 2:
        parser.error(f"--rounds={options.rounds}: an interval needs two or more")
    if options.photos and not options.photos.is_dir():
        parser.error(f"--photos={options.photos}: there is no such directory")
    options.out = options.out.resolve()
    return options


def contenders(sets: Sets, options: argparse.Namespace, cores: list[int]) -> list[Contender]:
    """Everything that is measured, with as many threads or processes as there are cores."""
    n, batch, size = len(cores), options.batch_size, options.image_size
    folder, jpeg, raw = str(sets.training_folder), f"records:{sets.jpeg}", f"records:{sets.raw}"
    shape = {"batch_size": batch, "image_size": size}
    read = {"directory": folder, **shape}
    stored = round(size * 8 / 7)

    def peer(name: str, module: str, **more: Any) -> Contender:
        return Contender(name, "peer", f"peers.{module}", read | more, "batches", size)

    def limit(name: str, function: str, *, ahead: bool = True, **more: Any) -> Contender:
        return Contender(name, "limit", "peers.limits", more, function, ahead=ahead)

    def ours(name: str, data: str, augment: str, **more: Any) -> Contender:
        given = {"data": data, "augment": augment, "cache_dir": sets.cache_dir, **shape, **more}
        side = stored if augment == "device" else size
        side = 0 if "first_pass" in more else side  # which repeats the same batches
        return Contender(f"{name}, {augment}", "ours", "peers.ours", given, "batches", side)

    command = [*prepare_command(sets.originals, "jpeg", sets.cache_dir)]
    device = {"data": jpeg, "augment": "device", "cache_dir": sets.cache_dir, **shape}
    return [
        Contender(**(vars(contender) | {"cores": tuple(cores)}))
        for contender in (
            peer(f"{KERAS} + Keras layers", "keras_directory", augment=True),
            peer(f"{KERAS}, no layers", "keras_directory", augment=False),
            peer(PIL, "torchvision_folder", workers=n, pil=True),
            peer("torchvision.io + v2, uint8", "torchvision_folder", workers=n, pil=False),
            peer(DALI, "dali", threads=n, normalise=True),
            peer(f"{DALI}, uint8", "dali", threads=n, normalise=False),
            peer(
                "ffcv, uint8",
                "ffcv_loader",
                workers=n,
                made=str(sets.jpeg_files.with_suffix(".beton")),
                install_log=str(options.out / "ffcv.log"),
            ),
            ours("originals", sets.originals, "host"),
            ours("originals", sets.originals, "device"),
            ours("folder", f"folder:{sets.folder}", "host"),
            ours("folder", f"folder:{sets.folder}", "device"),
            ours("prepared", jpeg, "host"),
            ours("prepared", jpeg, "device"),
            limit("libjpeg-turbo, originals", "decode", directory=folder, threads=n, fast=False),
            *(
                limit(name, "decode", directory=str(sets.jpeg_files), threads=n, fast=fast)
                for name, fast in (
                    ("libjpeg-turbo, prepared", False),
                    ("libjpeg-turbo, prepared, fast DCT", True),
                )
            ),
            ours("raw", raw, "host"),
            ours("raw", raw, "device"),
            limit(
                "read + copy, raw",
                "read_and_copy",
                directory=str(sets.raw),
                batch_size=batch,
                threads=n,
            ),
            ours("raw, first pass", raw, "device", first_pass=True),
            Contender(DEVICE_PART, "ours", "peers.ours", device, "device_part"),
            limit(
                "Pillow decode + resize + encode",
                "pillow",
                directory=folder,
                size=256,
                quality=90,
                processes=n,
            ),
            Contender(
                "prepare, whole command",
                "ours",
                "peers.limits",
                {"command": command, "target": str(options.out / "prepare-measured")},
                "prepare",
                ahead=False,
            ),
        )
    ]


def run(chosen: list[Contender], sets: Sets, options: argparse.Namespace, what: str) -> Any:
    logs = options.out / "logs" / what
    return measure(chosen, options.rounds, options.seconds, logs, sets.path)


def scaled(
    sets: Sets, options: argparse.Namespace, cores: list[int]
) -> dict[str, list[dict[str, Any]]]:
    """How the rate grows with the image's size, the number of shards and that of records."""
    chosen = {c.name: c for c in contenders(sets, options, cores)}

    def changed(name: str, **more: Any) -> Contender:
        original = chosen[name]
        return Contender(**(vars(original) | {"options": original.options | more, "side": 0}))

    cases: dict[str, list[tuple[int, Contender]]] = {
        "image size": [
            (size, changed(name, image_size=size))
            for name in ("originals, host", "prepared, device")
            for size in IMAGE_SIZES
        ]
    }
    for what, pairs in (
        ("shards", [(shards, 10_000, shards) for shards in SHARD_COUNTS]),
        ("records", [(records, records, 16) for records in RECORD_COUNTS]),
    ):
        cases[what] = []
        for at, records, shards in pairs:
            target = options.out / f"{sets.jpeg_files.name}-{records}-in-{shards}"
            reshard(sets.jpeg, target, records, shards)
            cases[what].append((at, changed("prepared, device", data=f"records:{target}")))
    return {
        what: [
            row | {"at": at}
            for (at, _), row in zip(
                pairs, rows_of(run([c for _, c in pairs], sets, options, what), ""), strict=True
            )
        ]
        for what, pairs in cases.items()
    }


def environment(cpus: int) -> dict[str, Any]:
    """What the figures hold for."""
    info = Path("/proc/cpuinfo").read_text()
    model = re.search(r"model name\s*: (.*)", info)
    versions = {}
    for name in VERSIONS:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = "not installed"
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processor": model[1] if model else platform.processor(),
        "cpus": cpus,
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "versions": versions,
    }


if __name__ == "__main__":
    sys.exit(main())
