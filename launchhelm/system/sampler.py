"""The thread that samples a host while a run is open, and is silent about its own failures.

One daemon thread per `start`. It only appends to the run's buffer, and ends when `stop` is called
or the run is finished.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from typing import Any, Final, Protocol

from launchhelm.system.host import Host
from launchhelm.system.nvidia import Gpus

MAX_INTERVAL_S: Final = 3600.0
JOIN_LIMIT_S: Final = 5.0

_logger = logging.getLogger("launchhelm.system")


class Log(Protocol):
    """What a sampler needs of a run."""

    def log(self, metrics: dict[str, Any], *, step: int | None = None) -> bool:
        """Append one record."""
        ...


def start(
    run: Log, *, interval: float = 15.0, step: Callable[[], int] | None = None
) -> Callable[[], None]:
    """Sample CPU, memory, disk, network and GPUs of this host until the returned `stop` is called.

    Args:
        run: Whatever has `log`; normally a `launchhelm.Run`.
        interval: Seconds between samples, above 0 and at most 3600. The first comes after one.
        step: Returns the step that a sample belongs to; default: the run's newest step, at least 0.

    Returns:
        A function that ends the thread; it waits at most interval (5 s at most) plus 1 s for it.

    Raises:
        ValueError: The interval is out of range.
    """
    interval_s = checked_interval(interval)
    host, why = _host()
    gpus = _gpus()
    if host is None and gpus is None:
        return lambda: None
    sampler = _Sampler(run, interval_s, step or _newest_step(run), host, gpus)
    sampler.begin("ok" if host is not None else f"unavailable: {why}")
    before_finish = getattr(run, "before_finish", None)
    if before_finish is not None:  # A script that never calls stop() leaves no thread behind.
        before_finish(sampler.stop)
    return sampler.stop


def checked_interval(interval: object) -> float:
    """Return a sampling interval in seconds.

    Raises:
        ValueError: Not a number above 0 and at most 3600.
    """
    if (
        isinstance(interval, bool)
        or not isinstance(interval, int | float)
        or not math.isfinite(interval)
        or not 0 < interval <= MAX_INTERVAL_S
    ):
        raise ValueError(
            f"The interval must be above 0 and at most {MAX_INTERVAL_S:g} s, got {interval!r}."
        )
    return float(interval)


class _Sampler:
    def __init__(
        self,
        run: Log,
        interval_s: float,
        step: Callable[[], int],
        host: Host | None,
        gpus: Gpus | None,
    ) -> None:
        self._run = run
        self._interval_s = interval_s
        self._step = step
        self._host = host
        self._gpus = gpus
        self._stopped = threading.Event()
        self._complained = False
        self._thread = threading.Thread(target=self._work, name="launchhelm-system", daemon=True)

    def begin(self, status: str) -> None:
        self._guard(lambda: self._write({"system/collector": status}))
        if self._host is not None:
            host = self._host
            self._guard(lambda: host.read(time.monotonic()))  # Rates need a reading before.
        self._thread.start()

    def stop(self) -> None:
        """End the thread. Calling it twice is harmless."""
        self._stopped.set()
        if self._thread is not threading.current_thread():
            self._thread.join(min(self._interval_s, JOIN_LIMIT_S) + 1.0)

    def _work(self) -> None:
        while not self._stopped.wait(self._interval_s):
            if getattr(self._run, "is_finished", False):
                break
            self._guard(self._sample)
        if self._gpus is not None:
            self._gpus.close()

    def _sample(self) -> None:
        values: dict[str, Any] = {}
        if self._host is not None:
            values.update(self._host.read(time.monotonic()))
        if self._gpus is not None:
            values.update(self._gpus.read())
        # A sample that was under way when `stop` came is not worth a late record.
        if values and not self._stopped.is_set():
            self._write(values)

    def _write(self, values: dict[str, Any]) -> None:
        # A Run keeps samples of the host apart from the script's own metrics and step counter.
        recorder = getattr(self._run, "recorder", None)
        if recorder is None:
            self._run.log(values, step=self._step())
        else:
            recorder.append("sys", values, step=self._step())

    def _guard(self, action: Callable[[], Any]) -> None:
        """Protect this thread, and the training script in `begin`: a sample lost is only that."""
        try:
            action()
        except Exception:
            if not self._complained:
                self._complained = True
                _logger.warning("A sample of the host failed; training goes on.", exc_info=True)


def _host() -> tuple[Host | None, str]:
    try:
        return Host(), ""
    except Exception as error:  # A broken psutil must not end a training script.
        return None, str(error)


def _gpus() -> Gpus | None:
    try:
        return Gpus()
    except Exception:  # No package, no driver, no GPU: the usual case on a CPU host.
        return None


def _newest_step(run: Any) -> Callable[[], int]:
    # `next_step` is one beyond the newest logged step.
    return lambda: max(int(getattr(run, "next_step", 0)) - 1, 0)
