"""Where runs go: server, organisation, project, and the key, which is read anew when it matters.

An option wins over an environment variable, that over a line in `.env`. The key is never kept
longer than a request needs it, and never printed.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from launchhelm import _settings
from launchhelm.env import MAX_FILE_BYTES, parse_env
from launchhelm.errors import ConfigError
from syncer.api.origin import check_organization, check_origin

HOSTED_URL: Final = "https://launchhelm.com"
_MAX_KEY_BYTES: Final = 4096


class KeySource:
    """The place that the key is read from: a file, else the environment, else `.env`.

    Args:
        file: Path; "" means LAUNCHHELM_API_KEY_FILE, if that is set.
    """

    def __init__(self, file: str = "") -> None:
        given = file or _settings.API_KEY_FILE.read()
        self.file = Path(given).expanduser().absolute() if given else None
        self._folder = os.getcwd()
        self._at_start = _settings.API_KEY.read()
        # What came from `.env` is in the environment by now; only the file will tell of a change.
        self._is_from_env_file = self._at_start == self._in_env_files()

    def read(self) -> str:
        """Return the key as it is now; "" when there is none (yet)."""
        if self.file is not None:
            return _first_line(self.file)
        now = _settings.API_KEY.read()
        if now == self._at_start and self._is_from_env_file:
            return self._in_env_files() or now
        return now

    def __str__(self) -> str:
        return str(self.file) if self.file is not None else _settings.API_KEY.name

    def _in_env_files(self) -> str:
        nearest = Path(self._folder)
        for folder in (nearest, *nearest.parents):
            key = parse_env(_text(folder / ".env")).get(_settings.API_KEY.name)
            if key:
                return key
        return ""


@dataclass(frozen=True)
class Target:
    """One server, and how to get in.

    Args:
        organization: Id; "" means the only one that the key sees.
        project: Name or id for all runs; "" means the project of each run.
    """

    url: str
    key: KeySource
    organization: str = ""
    project: str = ""
    ca_bundle: str = ""
    verify: bool = True

    @classmethod
    def of(
        cls,
        *,
        url: str = "",
        key_file: str = "",
        organization: str = "",
        project: str = "",
        ca_bundle: str = "",
        verify: bool = True,
    ) -> Target:
        """Fill in what the environment says; `.env` files have been loaded before.

        Raises:
            ConfigError: Nobody says where to, or with which key, or the address is none.
        """
        key = KeySource(key_file)
        given = url or _settings.URL.read()
        organization = organization or _settings.ORGANIZATION.read()
        if organization:
            check_organization(organization)
        if not key.read():
            raise _no_key(key, given)
        return cls(
            url=check_origin(given or HOSTED_URL),
            key=key,
            organization=organization,
            project=project or _settings.PROJECT.read(),
            ca_bundle=ca_bundle or _settings.CA_BUNDLE.read(),
            verify=verify,
        )


def _no_key(key: KeySource, url: str) -> ConfigError:
    kept = "Everything stays in the run directories."
    if key.file is not None:
        return ConfigError(
            f"The key file {key.file} holds no key, or cannot be read.",
            kept=kept,
            remedy="Put the key on its first line.",
        )
    if url:
        return ConfigError(
            f"There is no key for {url}.",
            kept=kept,
            remedy="Set LAUNCHHELM_API_KEY or LAUNCHHELM_API_KEY_FILE, or give --key-file; "
            "`launchhelm serve init` and `launchhelm serve keys` make keys of your own server.",
        )
    return ConfigError(
        "There is neither a server nor a key to send runs with.",
        kept=kept,
        remedy="A key of the hosted service goes into LAUNCHHELM_API_KEY. For a server of your "
        "own: `launchhelm serve init`, then `launchhelm serve`, then set LAUNCHHELM_URL and "
        "LAUNCHHELM_API_KEY.",
    )


def _first_line(path: Path) -> str:
    return next((line.strip() for line in _text(path).splitlines() if line.strip()), "")[
        :_MAX_KEY_BYTES
    ]


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(MAX_FILE_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""
