"""The report and the screen: whole, self-contained, safe and legible whatever was measured.

Every document here is made up; none of its figures was measured.
"""

import copy
import itertools
import json
import math
import random
import re
from html.parser import HTMLParser

import pytest

from {{cookiecutter.package_name}}.benchmark.statistics import Estimate
from {{cookiecutter.package_name}}.report import charts, wording
from {{cookiecutter.package_name}}.report.page import html
from {{cookiecutter.package_name}}.report.ratio_chart import ratio_scale
from {{cookiecutter.package_name}}.report.screen import screen
from {{cookiecutter.package_name}}.report.style import STYLE

CAUSES = (
    "gpu_not_visible",
    "throttled",
    "storage",
    "decode",
    "python_input",
    "no_overlap",
    "contention",
    "input_co_limited",
    "communication",
    "host_to_device_copy",
    "host_per_step",
    "launch",
    "small_batch",
    "device_compute",
    "device_memory",
    "device",
    "healthy",
    "undecided",
)
NOTHING = {"verdict": {"cause": "undecided"}}


def around(mean, part=0.03):
    return {"mean": mean, "low": mean * (1 - part), "high": mean * (1 + part)}


def probe(ms, part=0.03):
    return {"step_ms": ms, "low": ms * (1 - part), "high": ms * (1 + part)}


def card(rng, name="NVIDIA H100 80GB HBM3", points=120):
    seconds = [0.5 * n for n in range(points)]
    busy = [max(0, min(100, 30 + 12 * math.sin(s / 4) + rng.gauss(0, 7))) for s in seconds]
    return {
        "name": name,
        "utilization_mean": sum(busy) / max(1, points),
        "utilization_trend": -0.02,
        "memory_peak_bytes": 21 * 2**30,
        "power_mean_w": 231.0,
        "throttle_reasons": ["idle"],
        "throttle_fractions": {"idle": 0.1},
        "note": "",
        "series": {
            "seconds": seconds,
            "utilization": busy,
            "memory_bytes": [min(21.0, 4 + 2 * s) * 2**30 for s in seconds],
            "power_w": [160 + 2.2 * b + rng.gauss(0, 5) for b in busy],
            "sm_clock_mhz": [1980 - (s > 20) * 15 + rng.gauss(0, 6) for s in seconds],
            "temperature_c": [41 + 14 * (1 - math.exp(-s / 15)) for s in seconds],
            "pcie_rx_bytes_per_s": [None for _ in seconds],
        },
    }


def storage_bound(cards=2, points=90):
    """A made-up job on GPUs that waits for its records; every field of the document is there."""
    rng = random.Random(7)
    windows = [3100.0, 61.0, 55.0, *(48 + rng.gauss(0, 1.4) for _ in range(points))]
    singles = [rng.lognormvariate(math.log(43), 0.22) for _ in range(188)] + [210.0, 395.0]
    predictions = [
        ("stage", ["--cache=memory"], 2.91, 2.70, 3.12, "Bring the records nearer."),
        ("stage+prepare", [], 3.18, 2.95, 3.40, "Do both: each alone leaves the other in the way."),
        ("prepare", [], 1.09, 0.97, 1.22, "Decode less: store the images at training size once."),
        ("precision", "--precision=mixed_bfloat16", 1.01, 0.98, 1.04, "Watch the metric."),
        ("double_batch", "--batch_size=512", 0.94, 0.88, 0.99, "The learning rate must follow."),
    ]
    keys = ("change", "flags", "speedup", "low", "high", "advice")
    return {
        "schema": 1,
        "environment": {
            "python": "3.12.4",
            "tensorflow": "2.21.0",
            "keras": "3.15.1",
            "cuda": "12.5.1",
            "cudnn": None,
            "platform": "Linux-6.8.0-x86_64-with-glibc2.39",
            "cpus": 32,
            "memory_bytes": 256 * 2**30,
            "memory_peak_bytes": 11 * 2**30,
            "devices": [f"/device:GPU:{n}" for n in range(cards)],
            "precision": "mixed_bfloat16",
            "xla": True,
        },
        "settings": {
            "data": "records:/mnt/archive/birds/training-shards-2026-11",
            "model": "ConvNeXtTiny",
            "image_size": 224,
            "batch_size": 256,
            "epochs": 20,
            "precision": "auto",
            "cache": "none",
            "augment": "auto",
            "learning_rate": 0.002,
            "deterministic": False,
            "run_dir": "runs/2026-11-30-birds",
            "seed": 0,
        },
        "throughput": {
            "examples_per_second": around(5320.0, 0.02),
            "step_ms": {"mean": 48.1, "p10": 33.2, "p50": 43.6, "p90": 58.9, "p99": 212.0},
        },
        "startup": {"first_batch_s": 2.31, "first_step_s": 38.4},
        "probes": {
            "end_to_end": probe(48.1, 0.02),
            "input": probe(46.9, 0.05),
            "input_from_memory": probe(11.2),
            "step_resident": probe(14.2, 0.01),
            "device": probe(13.9, 0.01),
            "host": probe(0.8, 0.2),
            "feed": probe(2.1, 0.1),
            "device_2x_batch": None,
        },
        "series": {
            "seconds": [2.0 * n for n in range(len(windows))],
            "step_ms": windows,
        },
        "step_times_ms": singles,
        "parts": [
            {"name": "waits for input", "ms": 33.9, "low": 32.6, "high": 35.2},
            {"name": "computes", "ms": 12.1, "low": 11.9, "high": 12.3},
            {"name": "copies the batch", "ms": 1.3, "low": 1.1, "high": 1.5},
            {"name": "host's own work", "ms": 0.8, "low": 0.6, "high": 1.0},
        ],
        "gpu": [card(rng) for _ in range(cards)],
        "verdict": {
            "cause": "storage",
            "also": [],
            "confident": True,
            "explanation": "Your GPUs wait 70 % of the time for records to arrive from "
            "/mnt/archive/birds: reading from memory would make training 2.91x (2.70-3.12) faster. "
            "A step takes 48.1 ms (47.1-49.1); computing alone 14.2 ms, input alone 46.9 ms, and "
            "with its records in memory 11.2 ms.",
            "device_busy_fraction": 0.289,
            "ceiling_speedup": 3.39,
        },
        "predictions": [dict(zip(keys, one, strict=True)) for one in predictions],
        "not_guilty": [
            "The auto-shard warning in the log: with one worker it changes nothing.",
            "Prefetch: TensorFlow injects it by itself; adding it gave 1.00x (0.99-1.02).",
        ],
        "confirmations": [
            {
                "change": "stage",
                "predicted": {"mean": 2.91, "low": 2.70, "high": 3.12},
                "pairs": 5,
                "a": {
                    "name": "--cache=none",
                    "examples_per_second": around(5310.0, 0.02),
                    "metric": {"name": "val_accuracy", **around(0.7312, 0.01)},
                },
                "b": {
                    "name": "--cache=memory",
                    "examples_per_second": around(15020.0, 0.01),
                    "metric": {"name": "val_accuracy", **around(0.7330, 0.01)},
                },
                "speedup": {"mean": 2.83, "low": 2.74, "high": 2.92},
                "metric_difference": {"mean": 0.0018, "low": -0.006, "high": 0.009},
                "verdict": {
                    "speed": "faster",
                    "metric": "same",
                    "sentence": "Faster: 2.83x (2.74-2.92), as predicted; val_accuracy the same.",
                },
            }
        ],
        "order_slowdown": {"mean": 1.08, "low": 1.02, "high": 1.15},
        "validation": {"metric": "val_accuracy", "value": 0.7312},
    }


def healthy():
    """A made-up job with nothing to gain."""
    document = storage_bound(cards=1)
    document["verdict"] = {
        "cause": "healthy",
        "also": [],
        "confident": True,
        "explanation": "The GPU computes 98 % of the time, and no change that was measured gives "
        "more than 1.03x (0.99-1.07). With no input at all it would be 1.02x (1.01-1.03) faster.",
        "device_busy_fraction": 0.98,
        "ceiling_speedup": 1.02,
    }
    document["predictions"] = [
        {"change": "jit", "flags": "--jit=on", "speedup": 1.03, "low": 0.99, "high": 1.07},
        {"change": "stage", "flags": "--cache=memory", "speedup": 1.0, "low": 0.99, "high": 1.01},
    ]
    document["parts"] = [
        {"name": "waits for input", "ms": 0.9, "low": 0.2, "high": 1.6},
        {"name": "computes", "ms": 47.2, "low": 46.9, "high": 47.5},
    ]
    document["confirmations"], document["not_guilty"] = [], []
    return document


def undecided():
    """A made-up job whose figures scatter too much."""
    document = storage_bound(cards=1, points=12)
    document["verdict"] = {
        "cause": "undecided",
        "also": ["storage", "decode"],
        "confident": False,
        "explanation": "The GPU waits for input, whether for reading or for decoding is not "
        "told: they scatter by 30 %. Measure again on a quieter machine.",
        "device_busy_fraction": 0.55,
        "ceiling_speedup": 1.82,
    }
    document["predictions"], document["confirmations"], document["parts"] = [], [], []
    return document


def on_the_cpu():
    """A made-up job with no GPU and every optional thing missing."""
    return {
        "schema": 1,
        "environment": {"python": "3.11.2", "cpus": 2, "devices": ["/device:CPU:0"]},
        "settings": {"data": "digits", "batch_size": 32},
        "throughput": {
            "examples_per_second": around(2210.0, 0.1),
            "step_ms": {"mean": 14.5, "p10": None, "p50": None, "p90": None, "p99": None},
        },
        "startup": {"first_batch_s": 0.4, "first_step_s": None},
        "probes": dict.fromkeys(("end_to_end", "input", "host")),
        "gpu": [],
        "verdict": {
            "cause": "device",
            "also": [],
            "confident": True,
            "explanation": "The CPU computes 97 % of the time.",
            "device_busy_fraction": None,
            "ceiling_speedup": None,
        },
        "predictions": [],
        "validation": None,
    }


SAMPLES = {"storage": storage_bound, "healthy": healthy, "undecided": undecided, "cpu": on_the_cpu}
HOSTILE = "\"'><script>alert(1)</script><img src=x onerror=alert(2)>&amp;\x1b[2J"


class Page(HTMLParser):
    """The elements of a page, checked to be balanced, with their text."""

    VOID = ("meta", "br")

    def __init__(self, page):
        super().__init__(convert_charrefs=True)
        self.elements, self._open = [], []
        self.feed(page)
        self.close()
        assert not self._open, f"left open: {[element['tag'] for element in self._open]}"

    def handle_starttag(self, tag, attrs):
        assert len(dict(attrs)) == len(attrs), f"an attribute is given twice: {tag} {attrs}"
        element = {"tag": tag, "text": "", **dict(attrs)}
        self.elements.append(element)
        if tag not in self.VOID:
            self._open.append(element)

    def handle_endtag(self, tag):
        assert self._open and self._open[-1]["tag"] == tag, f"</{tag}> closes nothing"
        self._open.pop()

    def handle_data(self, data):
        for element in self._open:
            element["text"] += data

    def all(self, tag, kind=None):
        found = [element for element in self.elements if element["tag"] == tag]
        return [e for e in found if kind is None or kind in (e.get("class") or "").split()]

    def shape(self):
        return [(e["tag"], sorted(set(e) - {"text"})) for e in self.elements]


def with_every_text(value, change):
    """The document with each text of it, and each key of its settings, changed."""
    if isinstance(value, dict):
        return {key: with_every_text(one, change) for key, one in value.items()}
    if isinstance(value, list):
        return [with_every_text(one, change) for one in value]
    return change(value) if isinstance(value, str) else value


def whiskers(page):
    """The dots of the charts of ratios: class, and place in percent of the width."""
    return [
        (circle["class"], float(circle["cx"].rstrip("%")))
        for circle in Page(page).all("circle")
        if circle["class"] in ("sure", "unsure")
    ]


@pytest.mark.parametrize("name", SAMPLES)
def test_the_page_is_well_formed_and_loads_nothing(name):
    page = html(SAMPLES[name]())
    parsed = Page(page)
    assert page.startswith("<!DOCTYPE html>") and parsed.all("html")[0]["lang"] == "en"
    assert not re.search(r"https?://|url\(|@import|<script|<link|<img|<iframe", page)
    assert not [e for e in parsed.elements if {"src", "href", "srcset", "data"} & set(e)]
    for chart in re.findall(r'<svg role="img".*?>(.*?)</svg>', page, flags=re.DOTALL):
        assert re.match(r"<title>[^<]+</title><desc>[^<]+</desc>", chart)
    assert all(head.get("scope") in ("col", "row") for head in parsed.all("th"))


@pytest.mark.parametrize("name", SAMPLES)
def test_a_page_is_made_from_the_document_alone_and_leaves_it_as_it_is(name):
    document = SAMPLES[name]()
    before = copy.deepcopy(document)
    assert html(document) == html(json.loads(json.dumps(document)))
    assert screen(document) == screen(document)
    assert document == before


@pytest.mark.parametrize("cause", CAUSES)
def test_every_cause_stands_first_in_plain_words(cause):
    document = storage_bound()
    document["verdict"]["cause"] = cause
    parsed = Page(html(document))
    heading = parsed.all("h1")[0]
    assert heading["text"] == wording.CAUSES[cause] != cause
    assert parsed.elements.index(heading) < parsed.elements.index(parsed.all("section")[0])
    verdict = parsed.all("header")[0]["text"]
    assert document["verdict"]["explanation"] in verdict and "5,320" in verdict
    assert screen(document).splitlines()[1].startswith(f"VERDICT    {cause}: ")


def test_causes_are_told_apart_and_none_is_missing():
    assert sorted(wording.CAUSES) == sorted(CAUSES)
    assert len(set(wording.CAUSES.values())) == len(CAUSES)


@pytest.mark.parametrize("name", SAMPLES)
def test_hostile_texts_stay_texts(name):
    document = SAMPLES[name]()
    hostile = with_every_text(document, lambda text: text + HOSTILE)
    # A cause of that name has no title and no kind of its own; the page is the same beside.
    hostile["verdict"]["cause"] = document["verdict"]["cause"]
    for part in ("settings", "environment"):
        hostile[part] = {key + HOSTILE: value for key, value in hostile[part].items()}
        document[part] = {key + "x": value for key, value in document[part].items()}
    page = html(hostile)
    assert "<script" not in page and "<img" not in page
    assert Page(page).shape() == Page(html(document)).shape()
    assert "\x1b" not in screen(hostile)


@pytest.mark.parametrize("field", storage_bound())
def test_what_is_missing_or_null_is_left_out(field):
    for document in (storage_bound(), healthy()):
        for value in ("missing", None):
            changed = {key: one for key, one in document.items() if key != field}
            if value is None:
                changed[field] = None
            if field == "verdict":
                changed[field] = {"cause": "storage"}
            Page(html(changed))
            assert screen(changed).splitlines()[1].startswith("VERDICT")


def without(document, path):
    """The document with the value at a path of keys null."""
    changed = copy.deepcopy(document)
    inside = changed
    for key in path[:-1]:
        inside = inside[key]
    inside[path[-1]] = None
    return changed


@pytest.mark.parametrize(
    "path",
    [
        *(("throughput", key) for key in ("examples_per_second", "step_ms")),
        *(("throughput", "step_ms", key) for key in ("mean", "p10", "p99")),
        *(("startup", key) for key in ("first_batch_s", "first_step_s")),
        *(("gpu", 0, key) for key in card(random.Random(0))),
        *(("gpu", 0, "series", key) for key in ("seconds", "utilization", "power_w")),
        *(("predictions", 0, key) for key in ("change", "flags", "speedup", "low", "advice")),
        *(("confirmations", 0, key) for key in ("change", "predicted", "a", "speedup", "verdict")),
        *(("confirmations", 0, "b", key) for key in ("name", "examples_per_second", "metric")),
        *(("verdict", key) for key in ("also", "confident", "explanation", "ceiling_speedup")),
        ("parts", 1, "ms"),
        ("probes", "end_to_end"),
        ("probes", "input", "low"),
        ("series", "seconds"),
        ("validation", "value"),
    ],
)
def test_a_null_inside_is_left_out(path):
    document = without(storage_bound(), path)
    Page(html(document))
    assert screen(document).splitlines()[1].startswith("VERDICT")


def test_a_document_with_a_verdict_alone_is_reported():
    assert Page(html(NOTHING)).all("h1")[0]["text"] == wording.CAUSES["undecided"]
    assert "undecided" in screen(NOTHING)


def test_the_bar_of_a_step_is_in_proportion_and_adds_up():
    document = storage_bound()
    bar = Page(html(document)).all("div", "stack")[0]
    segments = re.findall(r"width:([\d.]+)%", html(document).split('class="stack"')[1])
    widths = [float(width) for width in segments[: len(document["parts"])]]
    whole = sum(part["ms"] for part in document["parts"])
    assert whole == pytest.approx(document["throughput"]["step_ms"]["mean"])
    assert sum(widths) == pytest.approx(100, abs=0.01)
    for part, width in zip(document["parts"], widths, strict=True):
        assert width == pytest.approx(100 * part["ms"] / whole, abs=0.01)
        assert part["name"] in bar["text"]
    assert "70 %" in bar["text"]


def test_a_part_that_noise_made_negative_takes_no_room():
    document = storage_bound()
    document["parts"][3]["ms"] = -0.4
    segments = html(document).split('class="stack"')[1]
    widths = [float(width) for width in re.findall(r"width:([\d.]+)%", segments)][:3]
    assert sum(widths) == pytest.approx(100, abs=0.01)


def test_a_dot_is_hollow_unless_its_interval_excludes_no_change():
    kinds = [kind for kind, _ in whiskers(html(storage_bound()))]
    assert kinds[:5] == ["sure", "sure", "unsure", "unsure", "sure"]


def test_dots_lie_in_the_order_of_their_ratios_around_the_line_at_one():
    document = storage_bound()
    document["confirmations"] = []
    page = html(document)
    places = [place for _, place in whiskers(page)]
    assert places == sorted(places, reverse=True)
    one = float(Page(page).all("line", "one")[0]["x1"].rstrip("%"))
    assert places[-2] > one > places[-1]  # 1.01 and 0.94
    ceiling = float(Page(page).all("line", "ceiling")[0]["x1"].rstrip("%"))
    assert ceiling > places[0]  # 3.39 and 3.18
    document["verdict"]["ceiling_speedup"] = 9.0
    further = Page(html(document)).all("line", "ceiling")[0]
    assert ceiling < float(further["x1"].rstrip("%")) < 100


@pytest.mark.parametrize("high", [math.inf, 1e12, 40.0])
def test_an_endless_interval_leaves_the_others_legible(high):
    document = storage_bound()
    document["predictions"][0]["high"] = high
    document["predictions"][2]["low"] = 0.0
    document["confirmations"] = []
    page = html(json.loads(json.dumps(document)))
    places = [place for _, place in whiskers(page)]
    assert all(0 < place < 100 for place in places)
    assert places[0] - places[-1] > 40  # 3.18 and 0.94
    assert len(Page(page).all("path", "arrow")) == 2


def test_infinite_and_useless_speed_ups_are_drawn():
    document = storage_bound()
    for speedup in (math.inf, 0.0, -1.0, 1e-9, 1e9, math.nan):
        document["predictions"][0] |= {"speedup": speedup, "low": speedup, "high": speedup}
        Page(html(document))
        screen(document)


def test_ticks_of_the_ratio_axis_have_room_and_one_among_them():
    for low, high in ((0.9, 1.1), (0.5, 3), (0.01, 200), (1, 1), (1, 40)):
        scale = ratio_scale([Estimate(math.sqrt(low * high), low, high)])
        places = [scale.place(tick) for tick in scale.ticks()]
        assert 1 in scale.ticks()
        assert all(b - a > 12 for a, b in itertools.pairwise(places))


def test_flags_can_be_copied_as_they_are_typed():
    codes = [code["text"] for code in Page(html(storage_bound())).all("code")]
    assert "--cache=memory" in codes and "--precision=mixed_bfloat16" in codes
    assert "user-select: all" in STYLE


def test_the_first_change_to_try_is_a_flag_where_that_may_give_as_much():
    document = storage_bound()
    assert wording.first_to_try(document)[0]["change"] == "stage"
    document["predictions"][0]["high"] = 2.8  # now surely less than the pair
    assert wording.first_to_try(document)[0]["change"] == "stage+prepare"
    document["predictions"] = document["predictions"][2:]  # none is sure to be faster
    assert wording.first_to_try(document) is None
    assert "Try first" not in html(document) and "TRY FIRST" not in screen(document)


def test_a_healthy_job_is_told_to_stop_tuning():
    document = healthy()
    document["predictions"][0]["low"] = 1.01
    assert "stop tuning" in Page(html(document)).all("h1")[0]["text"]
    assert "stop tuning" in screen(document).splitlines()[1]
    assert "Try first" not in html(document) and "TRY FIRST" not in screen(document)


def test_where_nothing_is_predicted_or_confirmed_the_screen_says_so():
    document = {**storage_bound(), "predictions": [], "confirmations": []}
    assert "predicted  Nothing is predicted:" in screen(document)
    assert "confirmed" not in screen(document)
    document["settings"] = {**document["settings"], "confirm": True}
    assert "confirmed  Nothing was tried:" in screen(document)


def test_an_undecided_job_is_told_what_it_may_be():
    header = Page(html(undecided())).all("header")[0]["text"]
    assert "records to be read" in header and "images to be decoded" in header
    assert "Possible: training waits for records" in header
    assert "storage, decode" in screen(undecided())


def test_what_is_not_certain_says_so():
    document = storage_bound()
    assert "Certain" in html(document) and "Not certain" not in html(document)
    document["verdict"] |= {"confident": False, "also": ["contention"]}
    assert "Not certain" in html(document)
    assert "slow each other down" in Page(html(document)).all("header")[0]["text"]
    assert "not certain; also contention" in screen(document)


def test_a_confirmation_shows_predicted_and_obtained_and_both_metrics():
    section = next(
        s["text"] for s in Page(html(storage_bound())).all("section") if "obtained" in s["text"]
    )
    for words in ("2.91x", "2.83x", "val_accuracy", "0.7312", "0.7330", "15,020", "the same"):
        assert words in section
    assert "Predicted and obtained" not in html(healthy())


def test_every_card_has_its_charts_on_axes_that_all_share():
    parsed = Page(html(storage_bound(cards=8)))
    assert len(parsed.all("div", "card")) == 8
    document = storage_bound(cards=8)
    document["gpu"][5]["series"]["power_w"][7] = 690.0
    assert re.findall(r">([\d,]+) W</text>", html(document)) == ["800"] * 8
    assert "8 x NVIDIA H100" in screen(storage_bound(cards=8))


def test_what_held_the_clocks_back_is_told_from_idleness():
    document = storage_bound(cards=1)
    assert "clocks never held back" in html(document)
    document["gpu"][0]["throttle_reasons"] = ["idle", "sw_thermal"]
    document["gpu"][0]["throttle_fractions"] = {"idle": 0.1, "sw_thermal": 0.4}
    assert "held back: sw thermal in 40 % of the samples" in html(document)
    assert "sw thermal in 40 %" in " ".join(screen(document).split())
    document["gpu"][0]["throttle_reasons"] = None
    assert "held back" not in html(document)


def test_it_says_why_no_gpu_was_sampled():
    assert "this job computed on the CPU" in html(on_the_cpu())
    assert "this job computed on the CPU" in screen(on_the_cpu())
    document = storage_bound() | {"gpu": []}
    assert "NVML" in html(document)
    assert "no NVIDIA driver here." in html(document | {"gpu_absent": "no NVIDIA driver here"})
    document["verdict"] = {"cause": "gpu_not_visible"}
    assert "TensorFlow sees none" in html(document)


@pytest.mark.parametrize("points", [1, 2, 500])
def test_any_number_of_points_is_drawn(points):
    document = storage_bound(cards=1)
    seconds = [2.0 * n for n in range(points)]
    document["series"] = {"seconds": seconds, "step_ms": [48.0 + n % 3 for n in range(points)]}
    document["step_times_ms"] = [48.0] * points
    document["gpu"] = [card(random.Random(1), points=points)]
    parsed = Page(html(document))
    assert len(parsed.all("circle", "dot")) == (0 if points == 500 else 6 * points)
    drawn = [len(line["points"].split()) for line in parsed.all("polyline")]
    assert drawn == ([] if points == 1 else [points] * 6)
    most = max(float(bin_["height"]) for bin_ in parsed.all("rect", "bin"))
    assert most > 100  # pixels: all values are in one bin, which is as tall as any


def test_a_gap_breaks_the_line_and_a_first_window_does_not_flatten_the_rest():
    values = [3000.0, 50.0, None, 52.0, 51.0]
    chart = charts.over_time("steps", range(5), values, "ms", top=150.0)
    lines = [line["points"].split() for line in Page(chart).all("polyline")]
    assert [len(line) for line in lines] == [2, 2]
    heights = [float(point.split(",")[1]) for line in lines for point in line]
    assert heights[0] == 0 and heights[1] == pytest.approx(100 * (1 - 50 / 150), abs=0.01)
    assert "1 above, up to 3,000 ms" in chart


def test_a_histogram_counts_every_value_once():
    values = [10.0] * 30 + [11.0] * 60 + [12.0] * 10 + [900.0]
    chart = Page(charts.histogram("steps", values, "ms", [("p50", 11.0)]))
    heights = sorted(float(column["height"]) for column in chart.all("rect"))
    assert heights[-3:] == pytest.approx([134 / 6, 134 / 2, 134], abs=0.1)
    assert any(text["text"] == "1 longer, up to 900 ms" for text in chart.all("text"))


@pytest.mark.parametrize("name", [*SAMPLES, "longest"])
def test_the_screen_is_a_screenful_with_the_verdict_first(name):
    document = SAMPLES.get(name, storage_bound)()
    if name == "longest":
        document["verdict"]["explanation"] *= 5
        document["verdict"] |= {"confident": False, "also": list(CAUSES)}
        document["predictions"] *= 5
        document["confirmations"] *= 5
        document["not_guilty"] *= 9
        document["parts"] *= 20
        document["gpu"][0]["name"] = "G" * 300
        document["settings"]["data"] = "d" * 300
    lines = screen(document).splitlines()
    assert len(lines) <= 24 and max(map(len, lines)) <= 100
    assert next(line for line in lines if line).startswith("VERDICT")
    assert screen(document).isascii()
    assert "examples/s" in screen(document)
    assert ("metric" in screen(document)) == bool(document["validation"])


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (0.0, "0"), (0.00012, "0.00012"), (0.8, "0.800"), (0.9999, "1.00"), (1.3, "1.30"),
        (9.999, "10.0"), (48.12, "48.1"), (99.96, "100"), (212.4, "212"), (15020.0, "15,020"),
        (-3.25, "-3.25"), (3e12, "3.00e+12"), (math.inf, "\N{INFINITY}"), (None, "\N{EN DASH}"),
    ],
)  # fmt: skip
def test_numbers_have_three_digits_and_no_exponent(value, written):
    assert wording.number(value) == written


def luminance(colour):
    channels = [int(colour[n : n + 2], 16) / 255 for n in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return sum(part * c for part, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one, other):
    """WCAG 2's contrast ratio of two colours."""
    lighter, darker = sorted((luminance(one), luminance(other)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


@pytest.mark.parametrize("scheme", [0, 1, 2], ids=["light", "dark", "print"])
def test_colours_can_be_told_from_the_paper(scheme):
    block = re.findall(r":root \{(.*?)\}", STYLE, flags=re.DOTALL)[scheme]
    colours = dict(re.findall(r"--(\w+): (#[0-9a-f]{6})", block))
    for words in ("ink", "muted", "warn", "good"):
        assert contrast(colours[words], colours["paper"]) >= 4.5, words
        assert contrast(colours[words], colours["panel"]) >= 4.5, words
    parts = [name for name in colours if name.startswith("part")]
    assert len(parts) == 6
    for part in parts:
        assert contrast(colours["on"], colours[part]) >= 4.5, part
        assert contrast(colours[part], colours["paper"]) >= 3, part
    assert contrast(colours["mark"], colours["paper"]) >= 3
