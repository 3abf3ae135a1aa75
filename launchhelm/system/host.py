"""CPU, memory, disk and network of this host, through psutil."""

from __future__ import annotations

from typing import Any

from launchhelm import _optional


class Host:
    """Readings of one host. Rates are means since the reading before.

    Raises:
        ImportError: psutil is not there.
    """

    def __init__(self) -> None:
        self._psutil: Any = _optional.require("psutil")  # Any: psutil is optional, so untyped here.
        self._process = self._psutil.Process()
        self._counters: dict[str, int] = {}
        self._counted_at = 0.0
        # The first reading has no interval to speak of and says 0; the next is right.
        self._psutil.cpu_percent(interval=None)

    def read(self, now: float) -> dict[str, float | int]:
        """Return what can be read now; what the host does not count is left out.

        Args:
            now: Monotonic seconds.
        """
        memory = self._psutil.virtual_memory()
        values: dict[str, float | int] = {
            "system/cpu_percent": float(self._psutil.cpu_percent(interval=None)),
            "system/memory_used_bytes": int(memory.used),
            "system/memory_available_bytes": int(memory.available),
            "system/process_rss_bytes": int(self._process.memory_info().rss),
        }
        values.update(self._rates(now))
        return values

    def _rates(self, now: float) -> dict[str, float]:
        counters = self._read_counters()
        elapsed, before = now - self._counted_at, self._counters
        self._counters, self._counted_at = counters, now
        if not before or elapsed <= 0:
            return {}
        # A counter that went back was reset; its rate is unknown, not negative.
        return {
            f"system/{name}_bytes_per_s": (count - before[name]) / elapsed
            for name, count in counters.items()
            if name in before and count >= before[name]
        }

    def _read_counters(self) -> dict[str, int]:
        counters: dict[str, int] = {}
        # Containers may hide either table; psutil then returns None or raises.
        try:
            disk = self._psutil.disk_io_counters()
        except Exception:
            disk = None
        try:
            network = self._psutil.net_io_counters()
        except Exception:
            network = None
        if disk is not None:
            counters |= {"disk_read": int(disk.read_bytes), "disk_write": int(disk.write_bytes)}
        if network is not None:
            counters |= {
                "network_rx": int(network.bytes_recv),
                "network_tx": int(network.bytes_sent),
            }
        return counters
