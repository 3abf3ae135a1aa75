"""What is wrong with this process's surroundings: packages, names and addresses, settings."""

from __future__ import annotations

import fcntl
import importlib.util
import os
import socket
import stat
import struct
from pathlib import Path
from typing import Final

from launchhelm import _optional, _settings
from launchhelm._run_open import refuse_the_other_distribution
from launchhelm.doctor.finding import Finding
from launchhelm.errors import ConfigError

_NVIDIA: Final = Path("/proc/driver/nvidia/version")
_SIOCGIFADDR: Final = 0x8915


def distribution() -> list[Finding]:
    """See that the import name `launchhelm` has one owner."""
    try:
        refuse_the_other_distribution()
    except ConfigError as error:
        about = "the Python environment"
        return [Finding("distribution", "error", about, error.message, "", error.remedy)]
    return []


def packages() -> list[Finding]:
    """Say which optional packages are missing, and what does not work without them."""
    wanted = {
        "torch": "launchhelm.torch cannot be used from this environment.",
        "psutil": "System metrics (CPU, memory, network) are not recorded.",
    }
    if _NVIDIA.exists():
        wanted["pynvml"] = "Metrics of the GPUs in this host are not recorded."
    return [
        Finding(
            "packages",
            "note",
            name,
            without,
            f"{name} is not installed.",
            f"pip install '{_optional.EXTRAS[name]}', if it is wanted here.",
        )
        for name, without in wanted.items()
        if importlib.util.find_spec(name) is None
    ]


def network(host: str = "") -> list[Finding]:
    """See that gloo, which carries live control, finds an address that other hosts can reach.

    It takes the interface in GLOO_SOCKET_IFNAME, else the address that this host's name has.
    """
    named = _settings.GLOO_SOCKET_IFNAME.read()
    if named:
        return [finding for name in named.split(",") for finding in _interface(name)]
    host = host or os.uname().nodename
    remedy = "Name the interface: export GLOO_SOCKET_IFNAME=eth0 (`ip addr` lists them)."
    try:
        infos = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError as error:
        happened = "The name of this host has no address; gloo falls back to loopback."
        said = f"{host}: {error.strerror or error}"
        return [Finding("network", "warning", host, happened, said, remedy)]
    usable = [str(info[4][0]) for info in infos if _is_ours(info)]
    if not usable:
        happened = "The name of this host leads to an address that it does not have."
        said = f"{host} is {', '.join(sorted({str(info[4][0]) for info in infos}))}"
        return [Finding("network", "warning", host, happened, said, remedy)]
    if _is_loopback(usable[0]):
        happened = "gloo will use loopback: ranks on several hosts cannot reach each other."
        said = f"{host} is {usable[0]}"
        # Nothing is wrong with that on one host, and most have only one.
        return [Finding("network", "note", host, happened, said, remedy)]
    return []


def _is_ours(info: tuple[int, int, int, str, tuple[object, ...]]) -> bool:
    """Whether this host can listen on an address that its name has; gloo tries the same."""
    family, kind, protocol, _, address = info
    try:
        with socket.socket(family, kind, protocol) as door:
            door.bind(address)
    except OSError:
        return False
    return True


def _interface(name: str) -> list[Finding]:
    name = name.strip()
    about = f"GLOO_SOCKET_IFNAME={name}"
    present = [each for _, each in socket.if_nameindex()]
    if name not in present:
        happened = "This host has no such network interface; gloo cannot start."
        remedy = f"Name one of {', '.join(present)}, or unset it."
        return [Finding("network", "error", about, happened, "", remedy)]
    address = _address_of(name)
    if not address:
        happened = "The interface has no IPv4 address."
        remedy = f"Name another of {', '.join(present)}, or unset it."
        return [Finding("network", "warning", about, happened, "", remedy)]
    if _is_loopback(address):
        happened = "gloo is told to use loopback: ranks on several hosts cannot reach each other."
        remedy = "Name the interface that leads to the other hosts."
        return [Finding("network", "note", about, happened, f"{name} is {address}", remedy)]
    return []


def _address_of(interface: str) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as door:
        try:
            packed = struct.pack("256s", interface.encode()[:15])
            return socket.inet_ntoa(fcntl.ioctl(door, _SIOCGIFADDR, packed)[20:24])
        except OSError:
            return ""


def _is_loopback(address: str) -> bool:
    return address.startswith("127.") or address == "::1"


def settings() -> list[Finding]:
    """See that the files which settings name are there, and that a key is kept to its owner."""
    found = []
    for setting in (_settings.API_KEY_FILE, _settings.CA_BUNDLE):
        given = setting.read()
        if not given:
            continue
        path = Path(given).expanduser()
        about = f"{setting.name}={path}"
        try:
            with open(path, "rb") as file:
                mode = os.fstat(file.fileno()).st_mode
        except OSError as error:
            said = str(error.strerror or error)
            happened = "The file cannot be read; syncing will fail."
            remedy = "Correct the path or its modes, or unset the variable."
            found.append(Finding("settings", "error", about, happened, said, remedy))
            continue
        if setting is _settings.API_KEY_FILE and mode & (stat.S_IRWXG | stat.S_IRWXO):
            happened = "Other users may read the key."
            said = f"The file's mode is {stat.S_IMODE(mode):o}."
            found.append(Finding("settings", "warning", about, happened, said, f"chmod 600 {path}"))
    return found
