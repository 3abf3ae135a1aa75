"""GPU readings through NVML, in NVML's numbering: all GPUs of the host, whoever uses them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from launchhelm import _optional


class Gpus:
    """The GPUs that NVML lists.

    Raises:
        ImportError: nvidia-ml-py is not there.
        RuntimeError: No driver answers, or it lists no GPU.
    """

    def __init__(self) -> None:
        nvml: Any = _optional.require("pynvml")  # Any: the package is optional, so untyped here.
        try:
            nvml.nvmlInit()
            count = int(nvml.nvmlDeviceGetCount())
            self._handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(count)]
        except nvml.NVMLError as error:
            raise RuntimeError(f"NVML does not answer: {error}") from error
        if not self._handles:
            raise RuntimeError("NVML lists no GPU")
        self._nvml = nvml

    def read(self) -> dict[str, float | int]:
        """Return what each GPU reports; a reading that it does not support is left out."""
        values: dict[str, float | int] = {}
        for index, handle in enumerate(self._handles):
            for name, value in self._readings(handle):
                values[f"system/gpu{index}/{name}"] = value
        return values

    def _readings(self, handle: Any) -> list[tuple[str, float | int]]:
        nvml = self._nvml
        readings: list[tuple[str, float | int]] = []

        def take(read: Callable[[], list[tuple[str, float | int]]]) -> None:
            # Whatever this GPU does not support, or this user may not read, is left out.
            with contextlib.suppress(nvml.NVMLError):
                readings.extend(read())

        def memory() -> list[tuple[str, float | int]]:
            info = nvml.nvmlDeviceGetMemoryInfo(handle)
            return [("memory_used_bytes", int(info.used)), ("memory_total_bytes", int(info.total))]

        take(lambda: [("utilization_percent", int(nvml.nvmlDeviceGetUtilizationRates(handle).gpu))])
        take(memory)
        take(
            lambda: [
                (
                    "temperature_c",
                    int(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)),
                )
            ]
        )
        take(lambda: [("power_w", nvml.nvmlDeviceGetPowerUsage(handle) / 1000.0)])
        return readings

    def close(self) -> None:
        """Let go of the driver."""
        with contextlib.suppress(self._nvml.NVMLError):
            self._nvml.nvmlShutdown()
