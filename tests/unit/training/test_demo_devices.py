"""The declared disk and links of the examples: one queue for everybody, and nothing without a declaration."""

import importlib.util
import time
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[3] / "examples" / "training" / "devices.py"


@pytest.fixture
def devices():
    spec = importlib.util.spec_from_file_location("demo_devices", SOURCE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_who_asks_later_is_served_later_whoever_it_is(devices, tmp_path):
    one, other = (devices.Device(tmp_path / "disk-0", 100.0) for _ in range(2))
    begin_s = time.monotonic()
    first = one.serve(5_000)
    assert first >= begin_s + 50
    assert other.serve(1_000) == pytest.approx(first + 10)
    assert one.serve(2_000) == pytest.approx(first + 30)
    assert devices.Device(tmp_path / "disk-1", 100.0).serve(100) < begin_s + 60  # another device is free


def test_an_idle_device_saves_nothing_up(devices, tmp_path):
    device = devices.Device(tmp_path / "disk-0", 1e9)
    device.serve(1)
    time.sleep(2 * devices.READY_S)
    now_s = time.monotonic()
    assert device.serve(10_000_000) >= now_s + 0.01


def test_only_what_is_declared_is_slow(devices, tmp_path, monkeypatch):
    for name in ("PLAIT_DEMO_DISK_MB_S", "PLAIT_DEMO_LINK_MBIT_S", "PLAIT_DEMO_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    assert devices.declared("DISK", "MB_S", 1e6) is None
    assert devices.link() is None
    (tmp_path / "file").write_bytes(b"content")
    assert devices.read(tmp_path / "file") == b"content"
    monkeypatch.setenv("PLAIT_DEMO_DISK_MB_S", "64")
    assert devices.declared("DISK", "MB_S", 1e6) is None  # nobody said who shares it
    monkeypatch.setenv("PLAIT_DEMO_DEVICES", str(tmp_path))
    assert devices.declared("DISK", "MB_S", 1e6).bytes_s == 64e6
