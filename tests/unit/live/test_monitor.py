"""What a node says of its GPUs, with a library of the driver that is made by hand."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from plait.live.agent.monitor import Monitor, Nvml

MIB = 1 << 20
#: As an H100 reports it: 550 MiB belong to driver and firmware.
TOTAL, RESERVED, FREE = 81_559 * MIB, 550 * MIB, 60_000 * MIB


class Driver(SimpleNamespace):
    """`old`: a driver before 510. `included`: bytes in use include those reserved, as drivers of 525 say."""

    nvmlMemory_v2 = 0x02000028

    def __init__(self, *, old: bool = False, included: bool = False) -> None:
        super().__init__(old=old, included=included, lost=False)

    def nvmlInit(self) -> None:
        pass

    def nvmlDeviceGetCount(self) -> int:
        return 1

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetName(self, handle: int) -> bytes:
        return b"NVIDIA H100"

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> Any:
        return SimpleNamespace(gpu=40)

    def nvmlDeviceGetMemoryInfo(self, handle: int, version: int | None = None) -> Any:
        if self.lost:
            raise RuntimeError("GPU is lost")
        if version is None:
            return SimpleNamespace(total=TOTAL, free=FREE, used=TOTAL - FREE)
        if self.old:
            raise RuntimeError("function not found")
        used = TOTAL - FREE - (0 if self.included else RESERVED)
        return SimpleNamespace(total=TOTAL, reserved=RESERVED, free=FREE, used=used)


def monitor(monkeypatch: pytest.MonkeyPatch, driver: Driver) -> Monitor:
    monkeypatch.setitem(sys.modules, "pynvml", driver)
    return Monitor("n0", 1, [0])


@pytest.mark.parametrize("included", [True, False])
def test_memory_that_the_driver_keeps_is_nobodys(monkeypatch: pytest.MonkeyPatch, included: bool) -> None:
    found = monitor(monkeypatch, Driver(included=included))
    assert (found.node.gpu_kind, found.node.gpu_memory_bytes) == ("NVIDIA H100", TOTAL - RESERVED)
    gpu = found.usage().gpus[0]
    assert (gpu.utilisation, gpu.memory_bytes) == (0.4, TOTAL - RESERVED - FREE)


def test_an_old_driver_says_only_what_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    found = monitor(monkeypatch, Driver(old=True))
    assert found.node.gpu_memory_bytes == TOTAL
    assert found.usage().gpus[0].memory_bytes == TOTAL - FREE


def test_a_gpu_that_cannot_be_read_is_not_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver()
    monkeypatch.setitem(sys.modules, "pynvml", driver)
    nvml = Nvml()
    driver.lost = True
    assert (nvml.usage(0).utilisation, nvml.usage(0).memory_bytes) == (0.0, 0.0)
