"""Images: files, bytes, PIL images, and arrays of pixels, which become PNG.

The encoder is our own thirty lines: so the same pixels are the same bytes, and the same digest, in
every environment, with or without Pillow.
"""

from __future__ import annotations

import io
import os
import struct
import zlib
from typing import Any, ClassVar, Final

from launchhelm.values.media import MAX_MEDIA_BYTES, Item, Medium, content_of

PNG: Final = "image/png"

_COLOR_TYPES: Final = {1: 0, 3: 2, 4: 6}
"""PNG's word for grey, RGB and RGBA, by the number of channels."""

_UP: Final = 2
"""PNG's word for the filter that subtracts the row above."""

_LEVEL: Final = 6
_MAX_SIDE: Final = (1 << 31) - 1


class Image(Medium):
    """A picture.

    Args:
        source: A path, bytes, a PIL image, or an array or tensor of shape (height, width) or
            (height, width, 1 | 3 | 4), in uint8 or in floats that are clipped to [0, 1]; NaN is
            black. A tensor on a device is fetched, so this waits for it.
        media_type: As for every medium; what is encoded here is PNG.
        caption: 1 to 256 characters.

    Raises:
        TypeError: Another source, for example a list.
        ValueError: Another shape or dtype, no type, an unknown one or one that is no image; no
            bytes or more than 16 MiB.
        OSError: The file cannot be read.
    """

    renderer: ClassVar[str] = "media"
    family: ClassVar[str] = "image"

    def __init__(
        self,
        source: Any,  # Any: arrays of any library.
        *,
        media_type: str | None = None,
        caption: str | None = None,
    ) -> None:
        facts: Item = {}
        if isinstance(source, str | bytes | bytearray | memoryview | os.PathLike):
            data, media_type = content_of(source, media_type, "Image", self.family)
        else:
            data, facts["width"], facts["height"] = _encoded(source)
            media_type = PNG
        self._take(data, media_type, facts, caption)


def is_drawn(source: object) -> bool:
    """Whether a source is a PIL image or an array, which only `Image` can take."""
    is_array = hasattr(source, "dtype") and hasattr(source, "shape")
    return is_array or (hasattr(source, "save") and hasattr(source, "mode"))


def encode_png(width: int, height: int, channels: int, pixels: bytes) -> bytes:
    """Encode rows of 8-bit samples, top to bottom, as PNG.

    Raises:
        ValueError: Not 1, 3 or 4 channels, no pixels, or not `width * height * channels` bytes.
    """
    return _png(width, height, channels, pixels, filter=0)


def _png(width: int, height: int, channels: int, rows: bytes, *, filter: int) -> bytes:
    """Encode rows to which one of PNG's filters was applied."""
    if channels not in _COLOR_TYPES or not (0 < width <= _MAX_SIDE and 0 < height <= _MAX_SIDE):
        raise ValueError("A PNG has 1, 3 or 4 channels, and at least one pixel.")
    size, mark = width * channels, bytes([filter])
    if len(rows) != size * height:
        raise ValueError(f"{size * height:,} bytes make such a PNG, got {len(rows):,}.")
    data = b"".join(mark + rows[start : start + size] for start in range(0, len(rows), size))
    head = struct.pack(">IIBBBBB", width, height, 8, _COLOR_TYPES[channels], 0, 0, 0)
    chunks = ((b"IHDR", head), (b"IDAT", zlib.compress(data, _LEVEL)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        for kind, body in chunks
    )


def _encoded(source: Any) -> tuple[bytes, int, int]:
    """Return the PNG of a PIL image or of an array, with width and height."""
    if hasattr(source, "dtype") and hasattr(source, "shape"):
        height, width, channels = _shape(source)
        samples = _samples(source)
        # What a row adds to the one above it (mod 256) compresses far better, in most pictures.
        rows = _bytes(samples[:1]) + _bytes(samples[1:] - samples[:-1])
        data = _png(width, height, channels, rows, filter=_UP)
    elif is_drawn(source):
        buffer = io.BytesIO()
        try:
            source.save(buffer, "PNG")
        except OSError as error:  # As Pillow says that PNG has no such mode.
            raise ValueError(f"{error}; use image.convert('RGB').") from error
        data, (width, height) = buffer.getvalue(), source.size
    else:
        raise TypeError(
            f"Image takes a path, bytes, a PIL image, an array or a tensor, got "
            f"{type(source).__name__}; make an array of it, as numpy.asarray does."
        )
    if len(data) > MAX_MEDIA_BYTES:
        raise ValueError(f"As PNG it has {len(data):,} bytes; 16 MiB at most: scale it down.")
    return data, width, height


def _shape(array: Any) -> tuple[int, int, int]:
    """Return height, width and channels."""
    shape = tuple(int(size) for size in array.shape)
    if len(shape) == 2:
        shape = (*shape, 1)
    if len(shape) != 3 or shape[2] not in _COLOR_TYPES:
        first = len(shape) == 3 and shape[0] in _COLOR_TYPES
        fix = " Channels come last: use tensor.permute(1, 2, 0) or numpy.moveaxis." if first else ""
        raise ValueError(
            "An image has the shape (height, width) or (height, width, channels) with 1, 3 or 4 "
            f"channels, got {tuple(array.shape)}.{fix}"
        )
    return shape


def _samples(array: Any) -> Any:
    """Return the samples in uint8 on the host, by what arrays and tensors can do themselves."""
    dtype = str(array.dtype).rpartition(".")[2]
    is_float = dtype.startswith(("float", "bfloat"))
    if not is_float and dtype != "uint8":
        raise ValueError(
            f"An image is in uint8 or in floats from 0 to 1, got {dtype}: use .astype('uint8') or "
            ".to(torch.uint8) for 0 to 255, or divide by the greatest value."
        )
    if hasattr(array, "detach"):
        array = array.detach().cpu()
        return (
            array.float().clip(0, 1).nan_to_num(0.0).mul(255).round().byte() if is_float else array
        )
    array = array.__array__()
    if is_float:
        array = array.clip(0, 1)
        array[array != array] = 0  # NaN.
        array = (array * 255).round().astype("uint8")
    return array


def _bytes(array: Any) -> bytes:
    try:
        return bytes((array.numpy() if hasattr(array, "detach") else array).tobytes())
    except RuntimeError:  # Without NumPy, torch cannot do this.
        return bytes(array.flatten().tolist())
