"""System metrics of one host: CPU, memory, disk, network and GPUs, beside a run's own metrics."""

from launchhelm.system.sampler import start

__all__ = ["start"]
