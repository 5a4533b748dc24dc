"""`stage --transcode`: what is staged is prepared already, from a directory or a URL."""

import json
import subprocess
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from {{cookiecutter.package_name}} import prepare
from {{cookiecutter.package_name}} import stage as command
from {{cookiecutter.package_name}}.preparation import preparing
from {{cookiecutter.package_name}}.staging import transcoding


@pytest.fixture
def photos(tmp_path) -> Path:
    """Six photos of two classes."""
    root = tmp_path / "photos"
    for number in range(6):
        path = root / "train" / "ab"[number % 2] / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(number).integers(0, 256, (30, 40, 3), np.uint8)
        Image.fromarray(pixels).save(path)
    return root


@pytest.fixture
def stage(tmp_path, capsys):
    (tmp_path / "ssd").mkdir()
    usual = [f"--scratch={tmp_path / 'ssd'}", "--allow_shared", "--reserve=0", "--transcode=16"]

    def run(source, *flags) -> tuple[int, Path, dict, str]:
        capsys.readouterr()
        code = command.main([*usual, "--json", "--workers=1", *flags, str(source)])
        printed = capsys.readouterr()
        report = json.loads(printed.err.splitlines()[-1]) if code == 0 else {}
        return code, Path(printed.out.strip() or "none"), report, printed.err

    return run


def shards(path: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in path.glob("*.tfrecord")}


@pytest.mark.parametrize("kind", ["", "folder:"])
def test_a_directory_is_prepared_from_where_it_lies(stage, photos, tmp_path, kind):
    code, path, report, _ = stage(f"{kind}{photos}")
    assert code == 0 and report["copied"] == report["files"] >= 2
    flags = [f"folder:{photos}", str(tmp_path / "made"), "--size=16"]
    assert prepare.main(flags) == 0 and shards(path) == shards(tmp_path / "made")
    assert not list(path.rglob("*.jpg"))
    code, again, report, _ = stage(f"{kind}{photos}")
    assert (code, again, report["copied"]) == (0, path, 0)


def test_prepared_records_are_recognised(stage, photos, tmp_path):
    assert prepare.main([f"folder:{photos}", str(tmp_path / "made"), "--size=32"]) == 0
    code, path, _, _ = stage(tmp_path / "made")
    assert code == 0 and json.loads((path / "manifest.json").read_text())["size"] == 16


def test_behind_a_url_the_originals_are_staged_and_leave(stage, photos, tmp_path):
    code, path, _, _ = stage(f"file://{photos}")
    assert code == 0 and shards(path)
    left = [p for p in path.parent.parent.iterdir() if not p.name.startswith(".")]
    assert left == [path.parent]


def test_damage_is_named_with_its_remedy(stage, photos):
    path = stage(photos)[1]
    (path / "manifest.json").write_text("")
    code, _, _, said = stage(photos)
    assert code == 1 and f"stage rm {path.parent.name}" in said
    capped = ["rm", path.parent.name, f"--scratch={path.parents[2]}", "--allow_shared"]
    assert command.main(capped) == 0 and stage(photos)[0] == 0


def test_a_source_that_changes_meanwhile_is_not_staged(stage, photos, monkeypatch):
    real = preparing.prepare

    def prepared(settings) -> int:
        code = real(settings)
        subprocess.run(["touch", photos / "train" / "a" / "0.jpg"], check=True)
        return code

    monkeypatch.setattr(preparing, "prepare", prepared)
    code, _, _, said = stage(photos)
    assert code == 1 and "was changed while it was prepared" in said
    monkeypatch.undo()
    assert stage(photos)[0] == 0


def test_what_it_cannot_prepare_is_refused(stage, tmp_path):
    assert stage("tfds:mnist")[0] == 2
    assert stage(tmp_path / "ssd", "--include=*.jpg")[0] == 2
    assert stage(tmp_path / "none")[0] == 2
    assert transcoding.KINDS == ("folder", "records")
