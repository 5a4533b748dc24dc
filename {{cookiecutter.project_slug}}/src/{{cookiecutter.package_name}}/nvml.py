"""The cards that CUDA shows this process, and readings of them by NVIDIA's NVML library.

NVML numbers cards by their place on the PCI bus, whatever CUDA_VISIBLE_DEVICES says; CUDA numbers
those it shows, by default the fastest first. So CUDA itself is asked which cards it shows, and NVML
for the ones with these UUIDs.
"""

import ctypes
import dataclasses
import importlib
import os
import uuid
from collections.abc import Mapping
from typing import Any

Figure = float | None  # None: this card or its driver does not tell

# Bits of NVML's "clocks event reasons" (nvml.h): why the clocks are where they are.
REASONS = {
    0x001: "idle",
    0x002: "application_clocks",
    0x004: "sw_power_cap",
    0x008: "hw_slowdown",
    0x010: "sync_boost",
    0x020: "sw_thermal",
    0x040: "hw_thermal",
    0x080: "hw_power_brake",
    0x100: "display_clocks",
    0x200: "board_limit",
    0x400: "reliability",
}
# Those that hold back a card that has work; the others are somebody's choice, or harmless.
HARMFUL = ("sw_power_cap", "hw_slowdown", "sw_thermal", "hw_thermal", "hw_power_brake")

# A card that has fallen off the bus answers with these from then on: GPU_IS_LOST, RESET_REQUIRED,
# GPU_NOT_FOUND.
LOST = (15, 16, 28)


class NoTelemetry(Exception):
    """There is nothing to read. The message says why."""


class CardLost(Exception):
    """A card no longer answers. The message is NVML's."""


@dataclasses.dataclass(frozen=True)
class CudaDevice:
    """A device of CUDA's list: a card, or a part of one (MIG)."""

    uuid: str  # as in "GPU-" + uuid or "MIG-" + uuid
    pci_bus_id: str  # of the card, such as 0000:41:00.0


def cuda_devices() -> list[CudaDevice]:
    """What CUDA shows this process, in CUDA's order. Takes no memory of a card.

    Raises:
      NoTelemetry: it shows none.
    """
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        raise NoTelemetry("no NVIDIA driver here: libcuda.so.1 cannot be loaded") from None
    count = ctypes.c_int()
    if cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(count)) or not count.value:
        raise NoTelemetry("CUDA shows this process no GPU")
    # The first version answers with the card's UUID where the device is a part of it.
    get_uuid = getattr(cuda, "cuDeviceGetUuid_v2", cuda.cuDeviceGetUuid)
    devices = []
    for ordinal in range(count.value):
        device, name, bus = ctypes.c_int(), (ctypes.c_ubyte * 16)(), ctypes.create_string_buffer(64)
        if cuda.cuDeviceGet(ctypes.byref(device), ordinal):
            raise NoTelemetry(f"CUDA does not open its GPU {ordinal}")
        get_uuid(ctypes.byref(name), device)
        cuda.cuDeviceGetPCIBusId(bus, len(bus), device)
        devices.append(CudaDevice(str(uuid.UUID(bytes=bytes(name))), bus.value.decode()))
    return devices


class Nvml:
    """NVML, started; `close` ends it."""

    def __init__(self) -> None:
        """Raises `NoTelemetry` where NVML cannot be started."""
        try:
            self.library: Any = importlib.import_module("pynvml")
        except ImportError:
            raise NoTelemetry("the package nvidia-ml-py is not installed") from None
        try:
            self.library.nvmlInit()
        except self.library.NVMLError as error:
            raise NoTelemetry(f"NVML does not start: {error}") from None

    def close(self) -> None:
        self.library.nvmlShutdown()

    def cards(self, devices: Mapping[int, CudaDevice]) -> list["Card"]:
        """The cards of CUDA's devices, given by their numbers.

        Raises:
          NoTelemetry: NVML knows none of them, or none answers.
        """
        cards, why = [], "NVML does not know the GPUs that CUDA shows"
        for number, device in devices.items():
            try:
                cards.append(self._card(number, device))
            except CardLost as lost:
                why = f"NVML does not reach the GPU: {lost}"
        found = [card for card in cards if card]
        if not found:
            raise NoTelemetry(why)
        return found

    def _card(self, number: int, device: CudaDevice) -> "Card | None":
        nvml, part = self.library, None
        for name in (f"GPU-{device.uuid}", f"MIG-{device.uuid}"):
            try:
                found = nvml.nvmlDeviceGetHandleByUUID(name)
                if name.startswith("MIG-"):
                    part, found = found, nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(found)
                return Card(nvml, number, found, part or found)
            except nvml.NVMLError:
                continue
        try:
            found = nvml.nvmlDeviceGetHandleByPciBusId(device.pci_bus_id)
        except nvml.NVMLError:
            return None
        return Card(nvml, number, found, found)


class Card:
    """A card as NVML shows it: what does not change, and readings of the rest.

    Of a card that is divided (MIG), name, memory and processes are those of the part this process
    has; NVML has power, clocks, temperature and the link for the whole card alone, and no
    utilisation at all.
    """

    def __init__(self, library: Any, number: int, card: Any, part: Any) -> None:
        """`number`: CUDA's, which is TensorFlow's; `part` is `card` where it is not divided."""
        self._nvml, self.number, self._card, self._part = library, number, card, part
        self.name: str = self._ask("nvmlDeviceGetName", of=part) or "NVIDIA GPU"
        self.limits = self._limits()

    def _limits(self) -> dict[str, Figure]:
        """What readings are to be compared with: the card's own limits, by name."""
        nvml = self._nvml
        memory = self._ask("nvmlDeviceGetMemoryInfo", of=self._part)
        slowdown = nvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN
        return {
            "memory_total_bytes": memory and memory.total,
            "power_limit_w": _scaled(self._ask("nvmlDeviceGetEnforcedPowerLimit"), 1e-3),
            "sm_clock_max_mhz": self._ask("nvmlDeviceGetMaxClockInfo", nvml.NVML_CLOCK_SM),
            "memory_clock_max_mhz": self._ask("nvmlDeviceGetMaxClockInfo", nvml.NVML_CLOCK_MEM),
            "temperature_slowdown_c": self._ask("nvmlDeviceGetTemperatureThreshold", slowdown),
            "pcie_generation_max": self._ask("nvmlDeviceGetMaxPcieLinkGeneration"),
            "pcie_width_max": self._ask("nvmlDeviceGetMaxPcieLinkWidth"),
        }

    def read(self, traffic: bool = True) -> dict[str, Figure]:
        """One reading.

        Args:
          traffic: read the PCIe counters too. NVML watches each of the two for 20 ms.

        Returns:
          utilization, memory_utilization: percent of NVML's last sample period (1/6 to 1 s) in
            which a kernel ran, or memory was read or written. One thread of one kernel counts.
          memory_bytes, own_memory_bytes: taken by everybody, and by this process.
          power_w; sm_clock_mhz, memory_clock_mhz; temperature_c.
          reasons: bits of `REASONS`.
          power_violation_ns, thermal_violation_ns: counters of the time for which clocks were held
            back, from the driver's start.
          pcie_generation, pcie_width: of the link now; an idle link is slowed down to save power.
          pcie_tx_bytes_per_s, pcie_rx_bytes_per_s: sent and received by the card.
          other_processes: that compute on it.

        Raises:
          CardLost: it does not answer any more.
        """
        nvml = self._nvml
        busy = self._ask("nvmlDeviceGetUtilizationRates")
        memory = self._ask("nvmlDeviceGetMemoryInfo", of=self._part)
        own, others = self._processes()
        return {
            "utilization": busy and busy.gpu,
            "memory_utilization": busy and busy.memory,
            "memory_bytes": memory and memory.used,
            "own_memory_bytes": own,
            "power_w": _scaled(self._ask("nvmlDeviceGetPowerUsage"), 1e-3),
            "sm_clock_mhz": self._ask("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_SM),
            "memory_clock_mhz": self._ask("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_MEM),
            "temperature_c": self._ask("nvmlDeviceGetTemperature", nvml.NVML_TEMPERATURE_GPU),
            "reasons": self._reasons(),
            "power_violation_ns": self._violation(nvml.NVML_PERF_POLICY_POWER),
            "thermal_violation_ns": self._violation(nvml.NVML_PERF_POLICY_THERMAL),
            "pcie_generation": self._ask("nvmlDeviceGetCurrPcieLinkGeneration"),
            "pcie_width": self._ask("nvmlDeviceGetCurrPcieLinkWidth"),
            "pcie_tx_bytes_per_s": self._traffic(nvml.NVML_PCIE_UTIL_TX_BYTES) if traffic else None,
            "pcie_rx_bytes_per_s": self._traffic(nvml.NVML_PCIE_UTIL_RX_BYTES) if traffic else None,
            "other_processes": others,
        }

    def _reasons(self) -> int | None:
        reasons = self._ask("nvmlDeviceGetCurrentClocksEventReasons")
        if reasons is None:  # drivers before 535 know the older name alone
            reasons = self._ask("nvmlDeviceGetCurrentClocksThrottleReasons")
        return reasons

    def _violation(self, policy: int) -> int | None:
        violation = self._ask("nvmlDeviceGetViolationStatus", policy)
        return violation and violation.violationTime

    def _traffic(self, counter: int) -> Figure:
        return _scaled(self._ask("nvmlDeviceGetPcieThroughput", counter), 1e3)  # from KB/s

    def _processes(self) -> tuple[int | None, int | None]:
        """Bytes that this process has on the card, and how many others compute there.

        In a container, drivers name processes by their numbers outside it: where this one is not
        found, nobody can tell which of them are others.
        """
        listed = self._ask("nvmlDeviceGetComputeRunningProcesses_v3", of=self._part)
        if listed is None:  # drivers before 510
            listed = self._ask("nvmlDeviceGetComputeRunningProcesses_v2", of=self._part)
        sizes = {process.pid: process.usedGpuMemory for process in listed or ()}
        if os.getpid() not in sizes:
            return None, None
        # Who computes on a card has memory there: 0 is a driver that could not look it up.
        return sizes[os.getpid()] or None, len(sizes) - 1

    def _ask(self, function: str, *arguments: Any, of: Any = None) -> Any:
        """NVML's answer; None where card, driver or permission do not give one."""
        try:
            return getattr(self._nvml, function)(of or self._card, *arguments)
        except self._nvml.NVMLError as error:
            if error.value in LOST:
                raise CardLost(str(error)) from None
            return None


def _scaled(value: int | None, factor: float) -> Figure:
    return None if value is None else value * factor
