"""Every error that leaves this package: what happened, what was kept, what to do next.

    LaunchHelmError           code, status, retryable
    ├── ConfigError           config        a setting or the root directory cannot be used
    ├── NotFound              not_found     no run, metric or record of that name
    ├── Conflict              conflict      ambiguous name, or a closed run that should be resumed
    ├── Unavailable           unavailable   the coordinator could not open the run (on peers)
    ├── Offline               offline       the call needs a server and none is attached
    ├── ProtocolError         protocol      a call out of order, or a record the API does not allow
    ├── StorageError          storage       a run directory is damaged, newer than us, or not ours
    ├── BufferFull            buffer_full   overflow="raise" and the memory buffer is full
    └── RuntimeFenced         fenced        a newer session took over this participant

`DivergedStateError` (launchhelm.torch) derives from Exception alone: code that tolerates our own
failures must never swallow the news that ranks disagree.
"""

from __future__ import annotations


class LaunchHelmError(Exception):
    """The base of all our errors.

    Args:
        code: Stable word for programs; the headings of docs/errors.md.
        message: What happened, in one sentence.
        status: HTTP status when a server answered, else 0.
        retryable: Whether the same call may succeed later without a change.
        kept: What is safe, in one sentence.
        remedy: What to do next, in one sentence.
    """

    def __init__(
        self,
        code: str,
        message: str,
        *,
        status: int = 0,
        retryable: bool = False,
        kept: str = "",
        remedy: str = "",
    ) -> None:
        super().__init__(f"{code}: " + " ".join(part for part in (message, kept, remedy) if part))
        self.code = code
        self.message = message
        self.status = status
        self.retryable = retryable
        self.kept = kept
        self.remedy = remedy

    def __reduce__(self) -> tuple[object, ...]:
        # The default would call __init__ with the rendered text only.
        return _restore, (type(self), self.args, self.__dict__)


def _restore(
    kind: type[LaunchHelmError], args: tuple[object, ...], state: dict[str, object]
) -> LaunchHelmError:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(state)
    return error


class _Coded(LaunchHelmError):
    """An error whose class fixes its code."""

    CODE = ""

    def __init__(
        self, message: str, *, retryable: bool = False, kept: str = "", remedy: str = ""
    ) -> None:
        super().__init__(self.CODE, message, retryable=retryable, kept=kept, remedy=remedy)


class ConfigError(_Coded):
    """A setting, an argument that names something, or the root directory cannot be used."""

    CODE = "config"


class NotFound(_Coded):
    """Nothing of that name exists here."""

    CODE = "not_found"


class Conflict(_Coded):
    """Several things have that name, or the thing is in a state that forbids the call."""

    CODE = "conflict"


class Unavailable(_Coded):
    """The coordinator could not open the run; raised on the other ranks."""

    CODE = "unavailable"


class Offline(_Coded):
    """The call needs a server, and none is attached to this process."""

    CODE = "offline"


class ProtocolError(_Coded):
    """A call out of order, or a record that the API does not allow."""

    CODE = "protocol"


class StorageError(_Coded):
    """A run directory is damaged, of a newer format, or cannot be reached."""

    CODE = "storage"


class BufferFull(LaunchHelmError):
    """The memory buffer is full and overflow="raise" was asked for."""

    def __init__(self) -> None:
        super().__init__(
            "buffer_full",
            "The memory buffer is full: the run directory has not accepted writes for a while.",
            retryable=True,
            kept="Everything logged before this call is still in the buffer.",
            remedy="Look at `launchhelm show` for the storage error, or use overflow='block'.",
        )


class RuntimeFenced(LaunchHelmError):
    """A newer session of this participant took over."""

    def __init__(self) -> None:
        super().__init__("fenced", "A newer session of this participant took over.")
