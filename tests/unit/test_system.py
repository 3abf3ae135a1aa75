"""System metrics: a quiet thread that samples the host until it is stopped."""

from __future__ import annotations

import logging
import sys
import threading
import time
import types
from collections.abc import Callable
from typing import Any

import pytest

import launchhelm.system
from launchhelm import _optional
from launchhelm.system.host import Host

HOST = {
    "system/cpu_percent",
    "system/memory_used_bytes",
    "system/memory_available_bytes",
    "system/process_rss_bytes",
}


class Notes:
    """A run that only remembers."""

    def __init__(self, error: Exception | None = None) -> None:
        self.records: list[tuple[dict[str, Any], int | None]] = []
        self.error = error

    def log(self, metrics: dict[str, Any], *, step: int | None = None) -> bool:
        self.records.append((dict(metrics), step))
        if self.error is not None:
            raise self.error
        return True

    def wait_for(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 20.0
        while not condition():
            assert time.monotonic() < deadline, self.records
            time.sleep(0.005)


@pytest.mark.parametrize("interval", [0, -1, 3600.1, float("nan"), float("inf"), "15", True, None])
def test_an_interval_out_of_range_is_refused(interval: Any) -> None:
    with pytest.raises(ValueError):
        launchhelm.system.start(Notes(), interval=interval)


def test_the_host_is_sampled_at_the_given_step_until_stop() -> None:
    run = Notes()
    step = 7
    stop = launchhelm.system.start(run, interval=0.01, step=lambda: step)
    assert run.records[0] == ({"system/collector": "ok"}, 7)
    run.wait_for(lambda: len(run.records) >= 3)
    stop()
    count = len(run.records)
    assert all(at == 7 for _, at in run.records)
    sample = run.records[1][0]
    assert sample.keys() >= HOST
    assert all(name.startswith("system/") for name in sample)
    assert sample["system/process_rss_bytes"] > 1_000_000
    stop()
    assert len(run.records) == count
    assert not any(thread.name == "launchhelm-system" for thread in threading.enumerate())


def test_without_a_step_the_newest_step_of_the_run_is_taken() -> None:
    run = Notes()
    run.next_step = 12  # type: ignore[attr-defined]
    launchhelm.system.start(run, interval=3600)()
    assert run.records == [({"system/collector": "ok"}, 11)]


def test_a_failing_log_is_reported_once_and_never_raised(
    caplog: pytest.LogCaptureFixture,
) -> None:
    run = Notes(error=RuntimeError("the run is gone"))
    with caplog.at_level(logging.WARNING, logger="launchhelm.system"):
        stop = launchhelm.system.start(run, interval=0.01)
        run.wait_for(lambda: len(run.records) >= 4)
        stop()
    assert len(caplog.records) == 1


def test_the_thread_ends_with_its_run() -> None:
    run = Notes()
    run.is_finished = True  # type: ignore[attr-defined]
    stop = launchhelm.system.start(run, interval=0.01)
    run.wait_for(
        lambda: not any(thread.name == "launchhelm-system" for thread in threading.enumerate())
    )
    stop()
    assert len(run.records) == 1


def test_without_psutil_and_without_a_gpu_nothing_is_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "psutil", None)
    monkeypatch.setitem(sys.modules, "pynvml", None)
    run = Notes()
    launchhelm.system.start(run)()
    assert run.records == []


def test_without_psutil_gpus_are_still_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psutil", None)
    monkeypatch.setitem(sys.modules, "pynvml", pretended_nvml())
    run = Notes()
    stop = launchhelm.system.start(run, interval=0.01, step=lambda: 3)
    run.wait_for(lambda: len(run.records) >= 2)
    stop()
    assert run.records[0][0]["system/collector"].startswith("unavailable: psutil")
    # The second GPU does not report its power.
    assert run.records[1][0] == {
        "system/gpu0/utilization_percent": 40,
        "system/gpu0/memory_used_bytes": 10,
        "system/gpu0/memory_total_bytes": 80,
        "system/gpu0/temperature_c": 55,
        "system/gpu0/power_w": 123.0,
        "system/gpu1/utilization_percent": 40,
        "system/gpu1/memory_used_bytes": 10,
        "system/gpu1/memory_total_bytes": 80,
        "system/gpu1/temperature_c": 55,
    }


def pretended_nvml() -> types.ModuleType:
    nvml = types.ModuleType("pynvml")

    class NVMLError(Exception):
        pass

    def power(handle: int) -> int:
        if handle == 1:
            raise NVMLError("not supported")
        return 123_000

    contents: dict[str, Any] = {
        "NVMLError": NVMLError,
        "NVML_TEMPERATURE_GPU": 0,
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: None,
        "nvmlDeviceGetCount": lambda: 2,
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetUtilizationRates": lambda handle: types.SimpleNamespace(gpu=40),
        "nvmlDeviceGetMemoryInfo": lambda handle: types.SimpleNamespace(used=10, total=80),
        "nvmlDeviceGetTemperature": lambda handle, sensor: 55,
        "nvmlDeviceGetPowerUsage": power,
    }
    for name, value in contents.items():
        setattr(nvml, name, value)
    return nvml


def test_rates_of_disk_and_network_are_per_second_and_never_negative(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    host = Host()
    counters = iter(
        [
            {"disk_read": 100, "network_rx": 50},
            {"disk_read": 300, "network_rx": 10},
        ]
    )
    monkeypatch.setattr(host, "_read_counters", lambda: next(counters))
    assert not any(name.endswith("_per_s") for name in host.read(1.0))
    second = host.read(3.0)
    assert second["system/disk_read_bytes_per_s"] == 100.0
    assert "system/network_rx_bytes_per_s" not in second


def test_a_missing_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psutil", None)
    assert _optional.find("psutil") is None
    with pytest.raises(ImportError, match=r"pip install 'launchhelm-offline\[system\]'"):
        _optional.require("psutil")
