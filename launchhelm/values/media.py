"""Pictures, sound and film: one item, or several in a grid; as bytes, or as an address."""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final, TypeAlias
from urllib.parse import urlsplit

from launchhelm.values.base import PendingBlob, RichValue, captioned, checked_text
from launchhelm.values.looks import warn_of_another

Item: TypeAlias = dict[str, Any]  # Any: JSON.

SUFFIXES: Final[Mapping[str, str]] = {
    ".png": "image/png",
    ".jpg": "image/jpeg",
    ".jpeg": "image/jpeg",
    ".webp": "image/webp",
    ".gif": "image/gif",
    ".avif": "image/avif",
    ".wav": "audio/wav",
    ".mp3": "audio/mpeg",
    ".ogg": "audio/ogg",
    ".flac": "audio/flac",
    ".weba": "audio/webm",
    ".mp4": "video/mp4",
    ".webm": "video/webm",
}
MEDIA_TYPES: Final = tuple(dict.fromkeys(SUFFIXES.values()))

MAX_MEDIA_BYTES: Final = 16 << 20
MAX_ITEMS: Final = 64
MAX_HREF_CHARS: Final = 2048

PENDING: Final = "pending:"
"""Before the digest of bytes, in the place of the artifact's id that a server will give them."""

_PENDING: Final = re.compile(re.escape(PENDING) + r"([0-9a-f]{64})", re.ASCII)
_ITEM_NUMBERS: Final = ("width", "height", "duration_ms")


class Medium(RichValue):
    """One picture, clip or film, read when this is made.

    Args:
        source: A path, or the content.
        media_type: One of MEDIA_TYPES, of the same family as the class; by default what the path's
            suffix says. Bytes that look like another one are kept, and warned of once.
        caption: 1 to 256 characters.

    Raises:
        TypeError: Another source.
        ValueError: No type, an unknown one or one of another family; no bytes or more than 16 MiB;
            a bad caption.
        OSError: The file cannot be read.
    """

    renderer: ClassVar[str] = "media"
    family: ClassVar[str] = ""
    """How its types begin: image, audio, video; "" takes all."""

    def __init__(
        self,
        source: str | os.PathLike[str] | bytes | bytearray | memoryview,
        *,
        media_type: str | None = None,
        caption: str | None = None,
    ) -> None:
        data, media_type = content_of(source, media_type, type(self).__name__, self.family)
        self._take(data, media_type, {}, caption)

    def _take(self, data: bytes, media_type: str, facts: Item, caption: str | None) -> None:
        self._blob = PendingBlob.of(data, media_type)
        source = {"artifact": {"id": PENDING + self._blob.hash, "sha256": self._blob.hash}}
        self._item = captioned({"source": source, "media_type": media_type, **facts}, caption)

    def item(self) -> Item:
        """Return its JSON form as one item among others."""
        return copied(self._item)

    def value(self) -> dict[str, Any]:
        """Return `{"items": [item]}`."""
        return {"items": [self.item()]}

    def blobs(self) -> list[PendingBlob]:
        """Return its bytes."""
        return [self._blob]


class Audio(Medium):
    """A sound: WAV, MP3, Ogg, FLAC or WebM, as a path or bytes; samples in an array are refused."""

    family = "audio"


class Video(Medium):
    """A film: MP4 or WebM, as a path or bytes; frames in an array are refused."""

    family = "video"


class MediaGrid(RichValue):
    """1 to 64 media shown together.

    Args:
        items: Media, and what `Run.upload_media` and `media_url` return.

    Raises:
        TypeError: It is no list or tuple.
        ValueError: Too many or too few, or one that is no medium.
    """

    renderer: ClassVar[str] = "media"

    def __init__(self, items: Sequence[Medium | Item]) -> None:
        if not isinstance(items, list | tuple):
            raise TypeError(f"Media come in a list, got {type(items).__name__}.")
        if not 1 <= len(items) <= MAX_ITEMS:
            raise ValueError(f"A grid has 1 to {MAX_ITEMS} media, got {len(items)}.")
        self._items = [checked_item(item) for item in items]
        self._blobs = [blob for item in items if isinstance(item, Medium) for blob in item.blobs()]

    def value(self) -> dict[str, Any]:
        """Return `{"items": [...]}`."""
        return {"items": [copied(item) for item in self._items]}

    def blobs(self) -> list[PendingBlob]:
        """Return the bytes of those that are not addresses or uploaded before."""
        return list(self._blobs)


def media_url(href: str, media_type: str, *, caption: str | None = None) -> Item:
    """Return an item for a medium that lies somewhere else; nothing is uploaded.

    Raises:
        ValueError: No absolute https address of at most 2,048 characters, an unknown type, a bad
            caption.
    """
    address = checked_text(href, "The address of a medium", MAX_HREF_CHARS)
    try:
        parts = urlsplit(address)
        absolute = parts.scheme == "https" and bool(parts.hostname)
    except ValueError:
        absolute = False
    if not absolute:
        raise ValueError(f"A medium needs an absolute https:// address, got {address[:200]!r}.")
    source = {"url": {"href": address}}
    return captioned({"source": source, "media_type": checked_type(media_type)}, caption)


def is_media(value: object) -> bool:
    """Whether a list in `log` is one of media: not empty, and only media and items."""
    return (
        isinstance(value, list | tuple)
        and bool(value)
        and all(isinstance(it, Medium) or (type(it) is dict and "source" in it) for it in value)
    )


def checked_item(item: object) -> Item:
    """Return one item of its own, whatever it is made of.

    Raises:
        ValueError: It is no medium, and no item as `Run.upload_media` and `media_url` return it.
    """
    if isinstance(item, Medium):
        return item.item()
    if not isinstance(item, Mapping):
        raise ValueError(
            f"A {type(item).__name__} is no medium; use Image, Audio, Video, upload_media() or "
            "media_url()."
        )
    source: Any = item.get("source")
    caption = item.get("caption")
    media_type = checked_type(item.get("media_type"))
    kinds = set(source) if isinstance(source, Mapping) else set()
    if kinds == {"url"} and isinstance(source["url"], Mapping):
        href: Any = source["url"].get("href")
        checked = media_url(href, media_type, caption=caption)
    elif kinds == {"artifact"} and isinstance(source["artifact"], Mapping):
        artifact = {key: source["artifact"].get(key) for key in ("id", "sha256")}
        if not all(isinstance(it, str) and it for it in artifact.values()):
            raise ValueError("The artifact of an item has an id and a sha256.")
        checked = captioned({"source": {"artifact": artifact}, "media_type": media_type}, caption)
    else:
        raise ValueError("The source of an item is one artifact or one url.")
    for name in _ITEM_NUMBERS:
        if name in item:
            if type(item[name]) is not int or item[name] < 0:
                raise ValueError(f"{name} of an item is a whole number, got {item[name]!r}.")
            checked[name] = item[name]
    return checked


def checked_type(media_type: object) -> str:
    """Return a media type.

    Raises:
        ValueError: It is not among MEDIA_TYPES.
    """
    if media_type not in MEDIA_TYPES:
        raise ValueError(
            f"media_type must be one of {', '.join(MEDIA_TYPES)}, got {media_type!r}; "
            "Run.artifact() keeps any other file."
        )
    return str(media_type)


def copied(item: Item) -> Item:
    """Return an item that shares nothing with this one."""
    source = {kind: dict(what) for kind, what in item["source"].items()}
    return {**item, "source": source}


def items_of(value: Mapping[str, Any]) -> list[Item]:
    """Return the items in the JSON form of any rich value, those in cells of tables included."""
    rows = value.get("rows")
    lists = [row for row in rows if isinstance(row, list)] if isinstance(rows, list) else []
    cells = [cell for row in lists for cell in row]
    items = value.get("items")
    listed = items if isinstance(items, list) else []
    return [item for item in [*listed, *cells] if isinstance(item, dict) and "source" in item]


def with_items(value: Mapping[str, Any], ids: Mapping[str, str]) -> dict[str, Any]:
    """Return the JSON form of a rich value with other ids in the place of some artifacts'."""
    changed = dict(value)
    if isinstance(value.get("items"), list):
        changed["items"] = [_renamed(item, ids) for item in value["items"]]
    if isinstance(value.get("rows"), list):
        changed["rows"] = [
            [_renamed(cell, ids) for cell in row] if isinstance(row, list) else row
            for row in value["rows"]
        ]
    return changed


def _renamed(item: Any, ids: Mapping[str, str]) -> Any:
    id_ = artifact_of(item) if isinstance(item, dict) else ""
    if id_ not in ids:
        return item
    return {**item, "source": {"artifact": {**item["source"]["artifact"], "id": ids[id_]}}}


def digest_of(item: Mapping[str, Any]) -> str:
    """Return the digest of an item's bytes in this run, "" for an item without."""
    match = _PENDING.fullmatch(artifact_of(item))
    return match[1] if match else ""


def artifact_of(item: Mapping[str, Any]) -> str:
    """Return the id of an item's artifact, "" for an address."""
    source = item.get("source")
    artifact = source.get("artifact") if isinstance(source, dict) else None
    id_ = artifact.get("id") if isinstance(artifact, dict) else None
    return id_ if isinstance(id_, str) else ""


def content_of(
    source: object, media_type: str | None, what: str, family: str = ""
) -> tuple[bytes, str]:
    """Return bytes and type of a path or of bytes; raises as `Medium` does."""
    if media_type is not None:
        checked_type(media_type)
        if family and not media_type.startswith(family + "/"):
            other = media_type.partition("/")[0]
            raise ValueError(
                f"{what} takes a media_type of {family}/, got {media_type!r}: "
                f"log it with Run.{other}() or {other.title()}, or give the type that it has."
            )
    if isinstance(source, bytes | bytearray | memoryview):
        if media_type is None:
            raise ValueError("Bytes do not say what they are; give media_type.")
        # A larger one is not copied to be refused.
        size = memoryview(source).nbytes
        data = bytes(source) if size <= MAX_MEDIA_BYTES else b""
    elif isinstance(source, str | os.PathLike):
        path = Path(source)
        if media_type is None:
            media_type = SUFFIXES.get(path.suffix.lower())
            if media_type is None:
                raise ValueError(
                    f"The suffix {path.suffix!r} says no type that is known; give media_type, or "
                    "keep the file with Run.artifact()."
                )
        data = _file_bytes(path)
        size = len(data)
    else:
        raise TypeError(f"{what} takes a path or bytes, got {type(source).__name__}.")
    if not 1 <= size <= MAX_MEDIA_BYTES:
        raise ValueError(
            f"A medium has 1 byte to {MAX_MEDIA_BYTES >> 20} MiB"
            + ("." if not size else "; scale it down, or keep the file with Run.artifact().")
        )
    warn_of_another(data, media_type)
    return data, media_type


def _file_bytes(path: Path) -> bytes:
    """Read a file, at most one byte more than is allowed; a pipe is not waited for."""
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "Not an ordinary file", str(path))
        return file.read(MAX_MEDIA_BYTES + 1)
