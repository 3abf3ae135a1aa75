"""The showing half of a Run: texts, pictures, sounds, tables and histograms at a step.

A value is complete, and its bytes are in the run directory, when a call returns. So these calls
wait for the disk where there are bytes that the run does not have yet. Storage that fails or hangs
costs the value, counted as a fault of `media`, and nothing else.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from launchhelm._run_metrics import Metrics
from launchhelm._run_shelf import Shelf
from launchhelm.errors import BufferFull, StorageError
from launchhelm.values import axes_text, check_step, name_problem
from launchhelm.values.base import RENDERERS, RichValue
from launchhelm.values.histogram import STATISTICS, Histogram
from launchhelm.values.image import Image, is_drawn
from launchhelm.values.media import (
    Audio,
    Item,
    MediaGrid,
    Medium,
    Video,
    digest_of,
    is_media,
    items_of,
    media_url,
)
from launchhelm.values.table import Column, Table
from launchhelm.values.text import Text

if TYPE_CHECKING:
    from launchhelm._recorder import Recorder
    from launchhelm._run_inert import NoRecorder

MAX_POINT_BYTES: Final = 524_160
MAX_POINT_VALUES: Final = 50_000
"""What a server takes in one point, its coordinates included."""

_POINT_BYTES: Final = 128
_AXIS_BYTES: Final = 24
_AXIS_VALUES: Final = 3


class Rich:
    """What of a run is looked at.

    All methods: `step=None` means the counter, which they do not move; `axes` are further
    coordinates; they return False when the value was dropped. All raise TypeError for a metric that
    holds scalars and ValueError for one that is shown otherwise, or a value that no server takes.
    """

    directory: Path
    recorder: Recorder | NoRecorder
    _is_over: bool
    _lock: threading.RLock
    _metrics: Metrics
    _next_step: int
    _shelf: Shelf

    def text(
        self,
        name: str,
        text: str,
        *,
        step: int | None = None,
        format: str | None = None,
        caption: str | None = None,
        **axes: object,
    ) -> bool:
        """Record a text, as `Text`; `format` is `plain` or `markdown`.

        Raises:
            TypeError, ValueError: As `Text`, and a bad name, step or axis.
        """
        return self._show(name, Text(text, format=format, caption=caption), step, axes)

    def image(
        self,
        name: str,
        source: Any,  # Any: arrays of any library.
        *,
        step: int | None = None,
        media_type: str | None = None,
        caption: str | None = None,
        **axes: object,
    ) -> bool:
        """Record a picture, as `Image`: a path, bytes, a PIL image, an array or a tensor.

        Raises:
            TypeError, ValueError, OSError: As `Image`, and a bad name, step or axis.
        """
        value = Image(source, media_type=media_type, caption=caption)
        return self._show(name, value, step, axes)

    def audio(
        self,
        name: str,
        source: Any,  # Any: what is no path and no bytes is refused by name.
        *,
        step: int | None = None,
        media_type: str | None = None,
        caption: str | None = None,
        **axes: object,
    ) -> bool:
        """Record a sound, as `Audio`: a path or bytes.

        Raises:
            TypeError, ValueError, OSError: As `Audio`, and a bad name, step or axis.
        """
        value = Audio(source, media_type=media_type, caption=caption)
        return self._show(name, value, step, axes)

    def video(
        self,
        name: str,
        source: Any,  # Any: as above.
        *,
        step: int | None = None,
        media_type: str | None = None,
        caption: str | None = None,
        **axes: object,
    ) -> bool:
        """Record a film, as `Video`: a path or bytes.

        Raises:
            TypeError, ValueError, OSError: As `Video`, and a bad name, step or axis.
        """
        value = Video(source, media_type=media_type, caption=caption)
        return self._show(name, value, step, axes)

    def media(
        self, name: str, items: Sequence[Medium | Item], *, step: int | None = None, **axes: object
    ) -> bool:
        """Record 1 to 64 media together: media values, `upload_media` and `media_url` items.

        Raises:
            TypeError, ValueError: As `MediaGrid`, and a bad name, step or axis; also an item whose
                bytes this run does not have.
        """
        return self._show(name, MediaGrid(items), step, axes)

    def upload_media(
        self,
        source: Any,  # Any: as `image`.
        *,
        media_type: str | None = None,
        caption: str | None = None,
    ) -> Item:
        """Keep the bytes of a medium, and return an item for `media` and cells of tables.

        Its artifact's id is `pending:<sha256>` until a server has given it another.

        Raises:
            TypeError, ValueError, OSError: As `Image` and `Medium`.
            StorageError: The run directory does not take it.
        """
        make = Image if is_drawn(source) else Medium
        medium = make(source, media_type=media_type, caption=caption)
        if not self._is_over:
            try:
                self._shelf.put(medium.blobs())
            except OSError as error:
                raise StorageError(
                    f"The run directory does not take the medium: {error.strerror or error}.",
                    kept="Nothing of it was recorded; the run goes on.",
                    remedy="Make room there, then call again.",
                ) from error
        return medium.item()

    def media_url(self, href: str, media_type: str, *, caption: str | None = None) -> Item:
        """Return an item for a medium at an https address; nothing is uploaded.

        Raises:
            ValueError: As `launchhelm.rich.media_url`.
        """
        return media_url(href, media_type, caption=caption)

    def rows(
        self,
        name: str,
        records: Iterable[Mapping[str, Any]],  # Any: cells.
        *,
        step: int | None = None,
        **axes: object,
    ) -> bool:
        """Record 1 to 1000 mappings as a table; columns are sorted, their types are inferred.

        Raises:
            TypeError, ValueError: As `Table.of_records`, and a bad name, step or axis.
        """
        return self._show(name, Table.of_records(records), step, axes)

    def log_table(
        self,
        name: str,
        columns: Iterable[Column | Mapping[str, str]],
        rows: Iterable[Sequence[Any]],  # Any: cells.
        *,
        step: int | None = None,
        **axes: object,
    ) -> bool:
        """Record a table with columns of given types, as `Table`.

        Raises:
            TypeError, ValueError: As `Table`, and a bad name, step or axis.
        """
        return self._show(name, Table(columns, rows), step, axes)

    def histogram(
        self,
        name: str,
        values: Any,  # Any: sequences, and arrays of any library.
        *,
        step: int | None = None,
        bins: int = 64,
        **axes: object,
    ) -> bool:
        """Record how samples are distributed, as `Histogram`.

        Raises:
            TypeError, ValueError: As `Histogram`, and a bad name, step or axis.
        """
        return self._show(name, Histogram(values, bins=bins), step, axes)

    def histogram_counts(
        self,
        name: str,
        edges: Any,  # Any: sequences, and arrays of any library; also counts and statistics.
        counts: Any,
        *,
        step: int | None = None,
        **statistics_and_axes: Any,
    ) -> bool:
        """Record bins that are counted already, as `Histogram.from_counts`.

        Args:
            statistics_and_axes: underflow, overflow, total, min, max, mean, std; other names are
                axes.

        Raises:
            TypeError, ValueError: As `Histogram.from_counts`, and a bad name, step or axis.
        """
        rest = statistics_and_axes
        statistics = {key: rest.pop(key) for key in STATISTICS if key in rest}
        return self._show(name, Histogram.from_counts(edges, counts, **statistics), step, rest)

    # --- within -----------------------------------------------------------------------------------

    def _show(
        self, name: str, value: RichValue, step: int | None, axes: Mapping[str, object]
    ) -> bool:
        """Record one value whose every fault is the caller's, and raised."""
        if not isinstance(name, str):
            raise TypeError(f"The name of a metric must be a string, got {type(name).__name__}.")
        problem = name_problem(name)
        if problem:
            raise ValueError(f"A metric cannot have {problem}.")
        known = self._metrics.kind(name)
        if known is not None and known != value.renderer:
            if known in RENDERERS:
                raise ValueError(f"The metric {name!r} is shown as {known}; use another name.")
            raise TypeError(f"The metric {name!r} holds {known}s; use another name.")
        place = self._next_step if step is None else check_step(step)
        return self._record_rich(name, value, place, axes_text(axes) or None)

    def _record_some(
        self,
        values: Mapping[str, RichValue | Sequence[Any]],
        step: int,
        axes: dict[str, str] | None,
    ) -> bool:
        """Record the rich values of one `log` call; one that cannot be is left out and counted."""
        is_whole = True
        for name, value in values.items():
            problem = name_problem(name)
            try:
                if problem:
                    raise ValueError(f"a metric cannot have {problem}")
                rich = value if isinstance(value, RichValue) else MediaGrid(value)
                is_whole = self._record_rich(name, rich, step, axes) and is_whole
            except BufferFull:
                raise
            except Exception as error:  # Protects training from a value of any class.
                self._metrics.leave_out(name, f"{type(value).__name__}: {str(error).rstrip('.')}")
                is_whole = False
        return is_whole

    def _record_rich(
        self, name: str, value: RichValue, step: int, axes: dict[str, str] | None
    ) -> bool:
        body = _Body(name=name, renderer=value.renderer, value=value.value())
        body.size_bytes = _checked_size(body["value"], axes or {})
        blobs = {blob.hash: blob for blob in value.blobs()}
        named = {digest_of(item): item["media_type"] for item in items_of(body["value"])}
        named.pop("", None)
        files = []
        for sha256, media_type in named.items():
            size = len(blobs[sha256].data) if sha256 in blobs else self._shelf.size_of(sha256)
            if size is None:
                raise ValueError(
                    f"This run has no bytes of {sha256[:12]}…; an item is of the run whose "
                    "upload_media() made it."
                )
            files.append({"sha256": sha256, "media_type": media_type, "size": size})
        if files:
            body["files"] = files
        if value.left_out:
            body["left_out"] = value.left_out
        if not self._is_over:
            try:
                self._shelf.put(blobs.values())
            except OSError as error:
                self.fault("media", error)
                return False
        if self._metrics.kind(name) is None:
            self._metrics.learn(name, value.renderer)
        try:
            return self.recorder.append("rich", body, step=step, axes=axes)
        except BufferFull:
            raise
        except Exception as error:  # Protects training.
            self.fault("recorder", error)
            return False

    def fault(self, component: str, error: Exception) -> None:
        """Count a failure of ours; see Run."""
        raise NotImplementedError


class _Body(dict[str, Any]):
    """The body of a record, with its size, which a look at its surface does not tell."""

    size_bytes = 0


def take_rich(metrics: Mapping[Any, object]) -> dict[Any, Any]:
    """Return what of a `log` call is a rich value, or a list of media."""
    return {
        name: value
        for name, value in metrics.items()
        if isinstance(value, RichValue) or is_media(value)
    }


def _checked_size(value: Mapping[str, Any], axes: Mapping[str, str]) -> int:
    """Return the size of a value as JSON.

    Raises:
        ValueError: No server takes it as a point.
    """
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    size = len(text) if text.isascii() else len(text.encode())
    around = _POINT_BYTES + sum(_AXIS_BYTES + len(axis) + len(it) for axis, it in axes.items())
    if size + around > MAX_POINT_BYTES:
        raise ValueError(
            f"The value has {size:,} bytes as JSON; a server takes {MAX_POINT_BYTES:,} with its "
            "coordinates: log it in parts, or keep it with Run.artifact()."
        )
    # Every value has one character at least, and one around it.
    if size > MAX_POINT_VALUES:
        count = _count(value) + _AXIS_VALUES * (len(axes) + 2)
        if count > MAX_POINT_VALUES:
            raise ValueError(
                f"The value holds {count:,} values; a server takes {MAX_POINT_VALUES:,} in one "
                "point: log fewer rows at once."
            )
    return size


def _count(value: Any) -> int:
    inner: Iterable[Any] = ()
    if isinstance(value, Mapping):
        inner = value.values()
    elif isinstance(value, list | tuple):
        inner = value
    return 1 + sum(map(_count, inner))
