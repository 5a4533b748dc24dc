"""What the GPUs do while steps run: sampled beside them, summed up afterwards."""

import collections
import contextlib
import statistics
import threading
import time
from collections.abc import Sequence
from typing import Any

from .nvml import HARMFUL, REASONS, Card, CardLost, Figure, NoTelemetry, Nvml, cuda_devices

PERIOD = 0.5  # seconds between samples: NVML renews its utilisation 1 to 6 times a second
KEPT = 2_400  # samples of a card, the last 20 minutes: a run of weeks must not fill the memory
LEAST_FOR_TREND = 3  # samples; a line goes through any two
PATIENCE = 2.0  # seconds that the end of a run waits for a driver that does not answer

# What `latest` gives of each card, for a log line.
LOGGED = ("utilization", "memory_bytes", "power_w", "sm_clock_mhz", "temperature_c")


class GpuSampler:
    """Samples the cards a run computes on, in a thread of its own, as long as it is entered.

        with GpuSampler() as sampler:
            ...
        sampler.summary()

    It may be entered again: the series goes on, with a gap. Where there is nothing to sample,
    `absent` says why, and everything it returns is empty. Nothing here ends a run: a card that
    stops answering ends its own series, with a note.
    """

    def __init__(self, devices: Sequence[str] | None = None) -> None:
        """`devices`: TensorFlow's names of those a run computes on, such as "/device:GPU:0"; None:
        all the GPUs that CUDA shows this process."""
        self.absent = "not started"
        self._devices = devices
        self._series: dict[int, _Series] = {}
        self._began = 0.0
        self._lock = threading.Lock()

    def __enter__(self) -> "GpuSampler":
        self._nvml: Nvml | None = None
        self._thread: threading.Thread | None = None
        self._stop, self.absent = threading.Event(), ""
        try:
            self._start()
        except NoTelemetry as why:
            self.absent = str(why)
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(PATIENCE)
            if self._thread.is_alive():
                return  # inside the driver: closing NVML now would wait for it too
        if self._nvml is not None:
            with contextlib.suppress(self._nvml.library.NVMLError):
                self._nvml.close()

    def latest(self) -> dict[str, float]:
        """The latest sample as named numbers for a log line; the numbers a card does not tell are
        left out.

        Returns:
          gpu0_utilization (percent), gpu0_memory_bytes, gpu0_power_w, gpu0_sm_clock_mhz,
          gpu0_temperature_c, gpu0_held_back (1 where a reason of `nvml.HARMFUL` holds); the same
          for gpu1 and on, by TensorFlow's numbers.
        """
        row: dict[str, float] = {}
        with self._lock:
            newest = {n: s.samples[-1] for n, s in self._series.items() if s.samples and not s.note}
        for number, sample in newest.items():
            values = {name: sample[name] for name in LOGGED}
            if sample["reasons"] is not None:
                values["held_back"] = int(not set(HARMFUL).isdisjoint(_names(sample["reasons"])))
            row |= {f"gpu{number}_{k}": float(v) for k, v in values.items() if v is not None}
        return row

    def summary(self) -> list[dict[str, Any]]:
        """A summary of each card over the time entered, for benchmark.json; [] where absent.

        None stands for what a card or its driver does not tell.

        Returns:
          For each card, by TensorFlow's numbers:
            name; utilization_mean: percent; utilization_trend: change of the utilisation along a
            fitted line, as a part of its mean, a minute (-0.1: it falls by a tenth a minute);
            memory_peak_bytes; power_mean_w; throttle_reasons: those of `nvml.REASONS` seen;
            throttle_fractions: the part of the samples each was seen in; sm_clock_mean_mhz;
            temperature_peak_c; power_violation_fraction, thermal_violation_fraction: parts of the
            time for which clocks were held back, by the driver's own counters;
            own_memory_peak_bytes; other_processes: the most at a time; pcie_generation, pcie_width:
            the most seen; pcie_tx_mean_bytes_per_s, pcie_rx_mean_bytes_per_s; the limits of
            `nvml.Card.limits`; samples: how many; note: "" or how its series ended; series: every
            figure of `nvml.Card.read` (the violation counters as parts of the time since the last
            sample), beside `seconds` from the first entry.
        """
        with self._lock:
            return [_summary(series) for _, series in sorted(self._series.items())]

    def _start(self) -> None:
        wanted = _ordinals(self._devices)
        if wanted == []:
            raise NoTelemetry("the run computes on the CPU")
        shown = dict(enumerate(cuda_devices()))
        self._nvml = Nvml()
        cards = self._nvml.cards({n: shown[n] for n in shown if wanted is None or n in wanted})
        for card in cards:
            self._series.setdefault(card.number, _Series(card.name, card.limits))
        self._began = self._began or time.monotonic()
        self._thread = threading.Thread(target=self._run, args=[cards, self._stop], daemon=True)
        self._thread.start()

    def _run(self, cards: list[Card], stop: threading.Event) -> None:
        previous: dict[int, dict[str, Figure]] = {}
        turn = 0
        while cards:
            for card in list(cards):
                seconds, series = time.monotonic() - self._began, self._series[card.number]
                try:
                    # NVML watches a link for 40 ms: one card's at a time.
                    reading = card.read(traffic=card is cards[turn % len(cards)])
                except CardLost as lost:
                    cards.remove(card)
                    with self._lock:
                        series.note = f"no samples from second {seconds:.1f} on: {lost}"
                    continue
                reading = {"seconds": seconds, **reading}
                with self._lock:
                    series.samples.append(_sample(previous.get(card.number), reading))
                previous[card.number] = reading
            turn += 1
            if stop.wait(PERIOD):
                return


def harmful_reasons(summary: Sequence[dict[str, Any]]) -> dict[str, float]:
    """What held the cards back, and in which part of the samples; the worst card's figure.

    A card at its power limit shows `sw_power_cap` in health too: look at its clocks beside it
    (`sm_clock_mean_mhz` / `sm_clock_max_mhz`).

    Args:
      summary: `GpuSampler.summary`'s.
    """
    worst: dict[str, float] = {}
    for card in summary:
        for name, part in (card["throttle_fractions"] or {}).items():
            if name in HARMFUL:
                worst[name] = max(part, worst.get(name, 0.0))
    return dict(sorted(worst.items(), key=lambda reason: -reason[1]))


class _Series:
    """The samples of one card."""

    def __init__(self, name: str, limits: dict[str, Figure]) -> None:
        self.name, self.limits, self.note = name, limits, ""
        self.samples: collections.deque[dict[str, Any]] = collections.deque(maxlen=KEPT)


def _ordinals(devices: Sequence[str] | None) -> list[int] | None:
    """CUDA's numbers of TensorFlow's devices: they are the same, CUDA_VISIBLE_DEVICES or not."""
    if devices is None:
        return None
    return [int(name.rpartition(":")[2]) for name in devices if ":GPU:" in name]


def _sample(before: dict[str, Figure] | None, reading: dict[str, Figure]) -> dict[str, Figure]:
    """A reading whose violation counters have become parts of the time since the one before."""
    sample = dict(reading)
    for kind in ("power", "thermal"):
        now, was = sample.pop(f"{kind}_violation_ns"), (before or {}).get(f"{kind}_violation_ns")
        sample[f"{kind}_violation"] = None
        if before is not None and now is not None and was is not None:
            seconds = (reading["seconds"] or 0.0) - (before["seconds"] or 0.0)
            sample[f"{kind}_violation"] = min(1.0, (now - was) * 1e-9 / seconds)
    return sample


def _summary(series: _Series) -> dict[str, Any]:
    samples = list(series.samples)
    columns = {name: [s[name] for s in samples] for name in (samples[0] if samples else {})}

    def known(name: str) -> list[float]:
        return [value for value in columns.get(name, []) if value is not None]

    def mean(name: str) -> Figure:
        return statistics.fmean(known(name)) if known(name) else None

    def most(name: str) -> Figure:
        return max(known(name), default=None)

    fractions = _fractions(known("reasons"))
    return {
        "name": series.name,
        "utilization_mean": mean("utilization"),
        "utilization_trend": _trend(columns.get("seconds", []), columns.get("utilization", [])),
        "memory_peak_bytes": most("memory_bytes"),
        "power_mean_w": mean("power_w"),
        "throttle_reasons": None if fractions is None else list(fractions),
        "throttle_fractions": fractions,
        "sm_clock_mean_mhz": mean("sm_clock_mhz"),
        "temperature_peak_c": most("temperature_c"),
        "power_violation_fraction": mean("power_violation"),
        "thermal_violation_fraction": mean("thermal_violation"),
        "own_memory_peak_bytes": most("own_memory_bytes"),
        "other_processes": most("other_processes"),
        "pcie_generation": most("pcie_generation"),
        "pcie_width": most("pcie_width"),
        "pcie_tx_mean_bytes_per_s": mean("pcie_tx_bytes_per_s"),
        "pcie_rx_mean_bytes_per_s": mean("pcie_rx_bytes_per_s"),
        **series.limits,
        "samples": len(samples),
        "note": series.note,
        "series": columns,
    }


def _trend(seconds: Sequence[float], values: Sequence[Figure]) -> Figure:
    """Change of a figure along its fitted line, as a part of its mean, a minute."""
    pairs = [(s, v) for s, v in zip(seconds, values, strict=True) if v is not None]
    mean = statistics.fmean(v for _, v in pairs) if pairs else 0.0
    if len(pairs) < LEAST_FOR_TREND or not mean:
        return None
    slope, _ = statistics.linear_regression(*zip(*pairs, strict=True))
    return 60 * slope / mean


def _fractions(readings: Sequence[Any]) -> dict[str, float] | None:
    """The part of the readings in which each reason was seen, in the order of NVML's bits."""
    if not readings:
        return None
    seen = collections.Counter(name for bits in readings for name in _names(bits))
    every = [*REASONS.values(), *sorted(set(seen) - set(REASONS.values()))]
    return {name: seen[name] / len(readings) for name in every if seen[name]}


def _names(bits: int) -> list[str]:
    """The reasons in a bit mask; one that a later driver has added goes by its bit."""
    set_bits = [1 << place for place in range(bits.bit_length()) if bits >> place & 1]
    return [REASONS.get(bit, f"bit_{bit:#x}") for bit in set_bits]
