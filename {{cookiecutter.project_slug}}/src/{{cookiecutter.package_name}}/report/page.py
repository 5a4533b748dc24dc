"""benchmark.json as one page that needs nothing beside it: the verdict first, then the figures."""

import json
from collections.abc import Mapping
from html import escape
from typing import Any

from ..benchmark.statistics import percentile
from . import charts
from .gains import confirmations_section, predictions_section
from .gpus import gpu_section
from .markup import figure, section, table, with_interval
from .style import STYLE
from .wording import (
    DASH,
    PROBES,
    cause_title,
    change_of,
    computes_on_gpu,
    estimate,
    first_to_try,
    flags_text,
    gibibytes,
    inside,
    interval,
    is_number,
    number,
    percent,
    shares,
    times,
)

PART_COLOURS = 6  # --part0 to --part5 of the style sheet; a seventh part is grey like the sixth


def html(document: Mapping[str, Any]) -> str:
    """The report of a benchmark: one HTML page that loads nothing.

    Args:
      document: what benchmark.json holds. Only "verdict" is needed; what else is missing or null is
        left out of the page, or said to be missing.
    """
    verdict = document["verdict"]
    sections = (
        _step,
        _times_over_time,
        gpu_section,
        predictions_section,
        confirmations_section,
        _not_guilty,
        _validation,
        _probes,
        _listed,
    )
    body = "\n".join(part for part in (write(document) for write in sections) if part)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(cause_title(verdict['cause']))} &ndash; benchmark</title>\n"
        f"<style>{STYLE}</style>\n</head>\n<body>\n<main>\n{_verdict(document)}\n{body}\n</main>\n"
        "<footer>Intervals are 95 %, from repeats in turn. Made from benchmark.json, which lies "
        "beside this page and has every figure.</footer>\n</body>\n</html>\n"
    )


def _verdict(document: Mapping[str, Any]) -> str:
    verdict = document["verdict"]
    kind = verdict["cause"] if verdict["cause"] in ("healthy", "undecided") else "limited"
    lines = [
        f'<header class="{kind}">',
        f'<p class="job">{_job(document)}</p>',
        f"<h1>{escape(cause_title(verdict['cause']))}</h1>",
        f'<p class="certainty">{escape(_certainty(verdict))}</p>',
        f'<p class="lead">{escape(str(verdict.get("explanation") or ""))}</p>',
    ]
    best = first_to_try(document)
    if best:
        prediction, gain = best
        flags = flags_text(prediction.get("flags"))
        what = f"<code>{escape(flags)}</code>" if flags else escape(change_of(prediction))
        lines.append(
            f'<div class="first"><p><b>Try first</b> {what}</p><p>predicted: '
            f"<b>{times(gain.mean)}</b> as fast {interval(gain, times)}</p></div>"
        )
    return "\n".join([*lines, _figures(document), "</header>"])


def _certainty(verdict: Mapping[str, Any]) -> str:
    also = "; ".join(inside(cause_title(one)) for one in verdict.get("also") or ())
    if verdict["cause"] == "undecided":
        return f"Possible: {also}." if also else "No cause stands out of the noise."
    if verdict["cause"] == "healthy" and verdict.get("confident"):
        return "No change that was measured is worth its trouble: train."
    if verdict.get("confident"):
        return f"Certain; also: {also}." if also else "Certain: the intervals allow no other cause."
    return f"Not certain; it may also be that: {also}." if also else "Not certain."


def _job(document: Mapping[str, Any]) -> str:
    settings, environment = document.get("settings") or {}, document.get("environment") or {}
    words = [f"<b>{escape(str(settings['data']))}</b>"] if settings.get("data") else []
    words += [escape(str(settings[name])) for name in ("model",) if settings.get(name)]
    if settings.get("image_size"):
        words.append(f"{escape(str(settings['image_size']))} px")
    if settings.get("batch_size"):
        words.append(f"batch of {escape(str(settings['batch_size']))}")
    if environment.get("precision"):
        words.append(escape(str(environment["precision"])))
    cards = [str(card.get("name")) for card in document.get("gpu") or ()]
    if cards:
        words += [f"{cards.count(name)} &times; {escape(name)}" for name in dict.fromkeys(cards)]
    elif environment.get("cpus"):
        words.append(f"{escape(str(environment['cpus']))} CPUs")
    return " · ".join(words) or "Benchmark"


def _figures(document: Mapping[str, Any]) -> str:
    """The handful of figures that stand beside the verdict."""
    verdict = document["verdict"]
    throughput = document.get("throughput") or {}
    startup = document.get("startup") or {}
    rate, step = estimate(throughput.get("examples_per_second")), throughput.get("step_ms") or {}
    tiles = []
    if rate:
        tiles.append(("examples a second", number(rate.mean), interval(rate)))
    if is_number(step.get("mean")):
        tiles.append(("a step", f"{number(step['mean'])} ms", _range(step)))
    if is_number(verdict.get("device_busy_fraction")):
        what = "GPU" if computes_on_gpu(document) else "device"
        tiles.append((f"{what} computes", percent(verdict["device_busy_fraction"]), "of the time"))
    if is_number(verdict.get("ceiling_speedup")):
        tiles.append(("ceiling", times(verdict["ceiling_speedup"]), "with no input to wait for"))
    if is_number(startup.get("first_step_s")):
        batch = f"first batch {number(startup.get('first_batch_s'))} s"
        tiles.append(("first step", f"{number(startup['first_step_s'])} s", batch))
    items = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)}<small>{escape(more)}</small></dd></div>"
        for name, value, more in tiles
    )
    return f'<dl class="figures">{items}</dl>' if items else ""


def _range(step: Mapping[str, Any]) -> str:
    if not (is_number(step.get("p10")) and is_number(step.get("p90"))):
        return ""
    return f"8 of 10 take {number(step['p10'])}{DASH}{number(step['p90'])}"


def _step(document: Mapping[str, Any]) -> str:
    parts = shares(document.get("parts"))
    if not parts:
        return section(
            "Where a step's time goes", "<p>This run did not tell a step's parts apart.</p>"
        )
    segments, rows = [], []
    for place, (part, share) in enumerate(parts):
        colour = f"var(--part{min(place, PART_COLOURS - 1)})"
        name, size = escape(str(part["name"])), estimate(part, "ms")
        between = interval(size) if size else ""
        if share > 0:
            segments.append(
                f'<span style="width:{100 * share:.4f}%;background:{colour}">'
                f"<b>{percent(share)}</b><i>{name}</i></span>"
            )
        rows.append(
            f'<tr><th scope="row"><span class="swatch" style="background:{colour}"></span>{name}'
            f'</th><td class="number">{number(part.get("ms"))} <small>{between}</small></td>'
            f'<td class="number">{percent(share)}</td></tr>'
        )
    whole = sum(max(0.0, part["ms"]) for part, _ in parts if is_number(part.get("ms")))
    spoken = "; ".join(f"{part['name']} {percent(share)}" for part, share in parts)
    return section(
        "Where a step's time goes",
        f'<div class="stack" role="img" aria-label="{escape(spoken)}">{"".join(segments)}</div>'
        + table(("part", "ms a step", "share"), rows, numbers=2)
        + f'<p class="note">Together {number(whole)} ms: a step from end to end.</p>',
    )


def _times_over_time(document: Mapping[str, Any]) -> str:
    series, times_ms = document.get("series") or {}, document.get("step_times_ms") or []
    step = (document.get("throughput") or {}).get("step_ms") or {}
    figures = []
    values = [v for v in series.get("step_ms") or () if is_number(v)]
    if values:
        level = step.get("mean") if is_number(step.get("mean")) else None
        # The first windows hold compilation: an axis up to them would flatten all that follows.
        top = charts.nice_top(min(max(values), 2.5 * percentile(values, 50)) * 1.08)
        chart = charts.over_time(
            "Milliseconds a step over the benchmark",
            series.get("seconds") or (),
            series["step_ms"],
            "ms",
            top=top,
            level=level,
        )
        figures.append(figure("Mean of each window in ms, warm-up included", chart))
    singles = [v for v in times_ms if is_number(v)]
    if singles:
        marks = [(f"p{p}", percentile(singles, p)) for p in (50, 90, 99, 10)]
        chart = charts.histogram("Times of single steps", singles, "ms", marks)
        figures.append(figure(f"Single steps, {len(singles)} of them, in ms", chart))
    quantiles = [(p, step[p]) for p in ("p10", "p50", "p90", "p99") if is_number(step.get(p))]
    words = ", ".join(f"{name} {number(value)} ms" for name, value in quantiles)
    note = f'<p class="note">One at a time: {words}.</p>' if words else ""
    if document.get("order_slowdown"):
        cost = estimate(document["order_slowdown"])
        if cost:
            note += (
                f'<p class="note">Keeping the order: the input takes {times(cost.mean)} '
                f"{interval(cost, times)} as long.</p>"
            )
    if not figures and not note:
        return ""
    return section("Step times", f'<div class="pair">{"".join(figures)}</div>{note}')


def _not_guilty(document: Mapping[str, Any]) -> str:
    items = "".join(f"<li>{escape(str(one))}</li>" for one in document.get("not_guilty") or ())
    return section("Looks guilty and is not", f'<ul class="innocent">{items}</ul>') if items else ""


def _validation(document: Mapping[str, Any]) -> str:
    validation = document.get("validation") or {}
    if not is_number(validation.get("value")):
        words = "No validation metric was measured: compare it before you keep a change."
        return section("Validation", f"<p>{words}</p>")
    return section(
        "Validation",
        f"<p><b>{escape(str(validation.get('metric')))} {validation['value']:.4f}</b> after the "
        "steps of this benchmark. Watch it when you change something: a faster run with a worse "
        "metric is no gain.</p>",
    )


def _probes(document: Mapping[str, Any]) -> str:
    probes = document.get("probes") or {}
    measured = [one for one in (estimate(probe, "step_ms") for probe in probes.values()) if one]
    if not measured:
        return ""
    most = max(one.mean for one in measured if is_number(one.mean)) * 1.1 or 1.0
    rows = []
    for name, probe in probes.items():
        figure = estimate(probe, "step_ms")
        chart = charts.bar(name, figure, most) if figure else ""
        what = PROBES.get(name, "")
        rows.append(
            f'<tr><th scope="row"><code>{escape(name)}</code> <small>{escape(what)}</small></th>'
            f'<td class="wide" style="width:32%">{chart}</td>'
            f'<td class="number">{with_interval(figure) if figure else "not measured"}</td></tr>'
        )
    head = '<tr><th scope="col">probe</th><th scope="col" class="wide"></th>'
    head += '<th scope="col" class="number">ms a step</th></tr>'
    table = f"<table><thead>{head}</thead><tbody>{''.join(rows)}</tbody></table>"
    return section("Probes", table)


def _listed(document: Mapping[str, Any]) -> str:
    """Environment and settings, whatever they hold."""
    sections = []
    for key, heading in (("environment", "Environment"), ("settings", "Settings")):
        items = [
            f"<div><dt>{escape(str(name))}</dt><dd>{escape(_plain(name, value))}</dd></div>"
            for name, value in (document.get(key) or {}).items()
        ]
        if items:
            sections.append(section(heading, f'<dl class="list">{"".join(items)}</dl>'))
    return "\n".join(sections)


def _plain(name: str, value: Any) -> str:
    if name.endswith("_bytes") and is_number(value):
        return gibibytes(value)
    if value is None or value == "" or value == []:
        return DASH
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(str(one) for one in value)
    return json.dumps(value) if isinstance(value, dict) else str(value)
