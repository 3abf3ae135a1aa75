"""What a run says about itself: the rules for its arguments, and facts of the host and the code.

Everything here runs once, in `init`. Nothing starts a child process: the commit is read from the
repository's files.
"""

from __future__ import annotations

import math
import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from launchhelm.errors import ConfigError
from launchhelm.store.inbox import user_name

MAX_NAME_CHARS: Final = 256
MAX_NOTES_CHARS: Final = 1024
MAX_CONFIG_ENTRIES: Final = 64
MAX_TAG_CHARS: Final = 64
MAX_TAGS_CHARS: Final = 1024
MAX_ARGV_CHARS: Final = 1024
MAX_DEPTH: Final = 32
MASK: Final = "***"

_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+")
_PASSWORDS: Final = frozenset(("password", "passwd", "passphrase", "secret", "credential"))
_KEYS: Final = frozenset(("key", "apikey", "token"))
_NUMBER = re.compile(r"[-+.\d][-+.\deE_]*", re.ASCII)
_COMMIT = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?", re.ASCII)


def check_text(value: object, what: str, limit: int, *, may_be_empty: bool = True) -> str:
    """Return a text argument.

    Raises:
        TypeError: Not a string.
        ValueError: Too long, empty where it must not be, or not valid Unicode.
    """
    if not isinstance(value, str):
        raise TypeError(f"{what} must be a string, got {type(value).__name__}.")
    if len(value) > limit or not (value or may_be_empty):
        raise ValueError(f"{what} must have {'0' if may_be_empty else '1'} to {limit} characters.")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{what} holds a lone surrogate, which is not valid Unicode.") from None
    return str(value)


def check_tags(tags: object) -> tuple[str, ...]:
    """Return the tags.

    Raises:
        TypeError: Not a sequence of strings, or a bare string.
        ValueError: A tag, or all of them together, too long.
    """
    if isinstance(tags, str) or not isinstance(tags, Sequence):
        raise TypeError("tags must be a sequence of strings, for example ['baseline'].")
    checked = tuple(check_text(tag, "A tag", MAX_TAG_CHARS, may_be_empty=False) for tag in tags)
    if sum(len(tag) + 3 for tag in checked) + 1 > MAX_TAGS_CHARS:
        raise ValueError(f"All tags together must stay below {MAX_TAGS_CHARS} characters.")
    return checked


def check_config(config: object) -> dict[str, Any]:
    """Return a deep copy of the hyperparameters.

    Raises:
        TypeError: An object that is not JSON inside a list or dict.
        ValueError: Not a mapping with non-empty string keys, too many of them, None, a number
            that is not finite, or another object.
    """
    if config is None:
        return {}
    if not isinstance(config, Mapping):
        raise ValueError(f"config must be a mapping, got {type(config).__name__}.")
    if len(config) > MAX_CONFIG_ENTRIES:
        raise ValueError(
            f"config has {len(config)} entries; {MAX_CONFIG_ENTRIES} are allowed. Nest them."
        )
    return {_key(key): _config_value(value, _key(key), 0) for key, value in config.items()}


def check_uuid(value: object, what: str) -> str:
    """Return an id in its usual form, "" for "".

    Raises:
        ConfigError: It is not a UUID.
    """
    text = check_text(value, what, MAX_NAME_CHARS)
    if text and not is_uuid(text):
        raise ConfigError(f"{what} must be a UUID, got {text!r}.")
    return text.lower()


def is_uuid(text: str) -> bool:
    """Whether the text is a UUID with its hyphens."""
    return re.fullmatch(r"(?i)[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", text) is not None


def masked(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config with the texts under names like key, token or password masked."""
    return {
        key: MASK if isinstance(value, str) and is_secret(key, value) else _masked(value)
        for key, value in config.items()
    }


def masked_argv(arguments: Sequence[str]) -> list[str]:
    """Return a command line with the values of options like --api-key masked."""
    shown = []
    option = ""
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if option and not argument.startswith("-") and is_secret(option, argument):
            shown.append(MASK)
        elif equals and is_secret(name, value):
            shown.append(f"{name}={MASK}")
        else:
            shown.append(argument)
        option = argument if argument.startswith("-") and not equals else ""
    return shown


def is_secret(name: str, value: str) -> bool:
    """Whether the last word of a name says that its value is a secret: api_key, hubToken, ...

    Numbers under names like max_tokens or num_keys are none.
    """
    words = _WORD.findall(name)
    last = words[-1].lower().removesuffix("s") if words else ""
    if last in _KEYS:
        return bool(value) and _NUMBER.fullmatch(value) is None
    return bool(value) and last in _PASSWORDS


def command_line() -> str:
    """Return this process's command, shell-quoted and masked, cut to MAX_ARGV_CHARS."""
    import shlex  # Used once, by init.

    arguments = [_printable(argument) for argument in sys.argv]
    return shlex.join(masked_argv(arguments))[:MAX_ARGV_CHARS]


def python_version() -> str:
    """Return the version of this Python, such as 3.11.2."""
    return sys.version.split()[0]


def host_name() -> str:
    """Return the name of this host."""
    return os.uname().nodename


def login_name() -> str:
    """Return the name of the user that this process runs as."""
    return user_name(os.getuid())


def git_commit(start: Path | None = None) -> str:
    """Return the commit checked out at a directory or above it, "" when there is none to be read.

    Reads .git, HEAD, the branch and packed-refs; worktrees and submodules are followed.
    """
    try:
        nearest = start if start is not None else Path.cwd()
        for directory in (nearest, *nearest.parents):
            git = directory / ".git"
            if git.is_file():
                text = git.read_text("utf-8").strip()
                return _head(directory / text.removeprefix("gitdir:").strip())
            if git.is_dir():
                return _head(git)
    except (OSError, ValueError):
        pass  # No repository that we may read is as good as none.
    return ""


def _head(git: Path) -> str:
    head = (git / "HEAD").read_text("ascii").strip()
    if not head.startswith("ref:"):
        return _commit(head)
    reference = head.removeprefix("ref:").strip()
    common = git
    if (git / "commondir").is_file():
        common = git / (git / "commondir").read_text("utf-8").strip()
    for place in (git, common):
        if (place / reference).is_file():
            return _commit((place / reference).read_text("ascii").strip())
    for line in (common / "packed-refs").read_text("utf-8", "replace").splitlines():
        commit, _, name = line.partition(" ")
        if name.strip() == reference:
            return _commit(commit)
    return ""


def _commit(text: str) -> str:
    text = text.lower()
    return text if _COMMIT.fullmatch(text) else ""


def _key(key: object) -> str:
    if not isinstance(key, str) or not key:
        raise ValueError(f"config keys must be non-empty strings, got {key!r}.")
    return check_text(key, "A config key", MAX_NAME_CHARS, may_be_empty=False)


def _config_value(value: object, where: str, depth: int) -> Any:
    if isinstance(value, bool | int):
        return value
    if isinstance(value, str):
        return check_text(value, where, 1 << 20)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"config: {where} is {value!r}; numbers must be finite.")
        return value
    if depth >= MAX_DEPTH:
        raise ValueError(f"config: {where} is nested deeper than {MAX_DEPTH} levels.")
    if isinstance(value, Mapping):
        return {
            _key(key): _config_value(item, f"{where}.{key}", depth + 1)
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [_config_value(item, f"{where}[]", depth + 1) for item in value]
    error = TypeError if depth and value is not None else ValueError
    raise error(
        f"config: {where} is a {type(value).__name__}; use bool, int, float, str, dict or list."
    )


def _masked(value: Any) -> Any:  # Any: a value of the config.
    if isinstance(value, Mapping):
        return masked(value)
    return [_masked(item) for item in value] if isinstance(value, list) else value


def _printable(text: str) -> str:
    return text.encode("utf-8", "replace").decode("utf-8", "replace")
