"""Pictures, sounds, films and texts: what they accept, and the bytes that come of it."""

from __future__ import annotations

import io
import os
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy
import PIL.Image
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from launchhelm import Audio, Image, Text, Video
from launchhelm.rich import MediaGrid, RichValue, encode_png, media_url
from launchhelm.values import looks
from launchhelm.values.media import Medium

PIXELS = numpy.linspace(0, 1, 4 * 6 * 3).reshape(4, 6, 3)
PNG = b"\x89PNG\r\n\x1a\n"


def decoded(image: Image) -> Any:
    """Return the pixels of an image as Pillow reads them, which is not our encoder."""
    return numpy.asarray(PIL.Image.open(io.BytesIO(image.blobs()[0].data)))


@given(
    st.sampled_from([(), (1,), (3,), (4,)]).flatmap(
        lambda channels: arrays.arrays(
            numpy.uint8,
            st.tuples(st.integers(1, 9), st.integers(1, 9)).map(lambda it: it + channels),
        )
    )
)
def test_an_array_of_bytes_comes_back_pixel_by_pixel(pixels: Any) -> None:
    image = Image(pixels)
    assert decoded(image).shape == (pixels[..., 0] if pixels.shape[2:] == (1,) else pixels).shape
    assert decoded(image).tobytes() == pixels.tobytes()
    (item,) = image.value()["items"]
    assert (item["width"], item["height"]) == (pixels.shape[1], pixels.shape[0])
    assert Image(torch.from_numpy(pixels.copy())).value() == image.value()


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "bfloat16"])
def test_floats_are_clipped_and_rounded_as_hosted(dtype: str) -> None:
    values = [0.0, 0.5, 1.0, 2.0, -1.0, float("nan"), float("inf"), 0.25]
    expected = [0, 128, 255, 255, 0, 0, 255, 64]
    tensor = torch.tensor([values], dtype=getattr(torch, dtype), requires_grad=True)
    assert decoded(Image(tensor)).tolist() == [expected]
    if dtype != "bfloat16":
        before = numpy.array([values], dtype=dtype)
        assert decoded(Image(before)).tolist() == [expected]
        assert numpy.isnan(before).sum() == 1  # The caller's array is left as it was.


def test_torch_without_numpy_makes_the_same_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = Image(torch.from_numpy(PIXELS)).value()

    def numpy_is_missing(self: torch.Tensor) -> Any:
        raise RuntimeError("Numpy is not available")

    monkeypatch.setattr(torch.Tensor, "numpy", numpy_is_missing)
    assert Image(torch.from_numpy(PIXELS)).value() == expected


@pytest.mark.parametrize(
    ("source", "error", "said"),
    [
        (numpy.zeros((3, 5, 6)), ValueError, "permute(1, 2, 0)"),
        (torch.zeros(1, 5, 6), ValueError, "Channels come last"),
        (torch.zeros(5, 6, 2), ValueError, "1, 3 or 4"),
        (numpy.zeros(5), ValueError, "(height, width)"),
        (torch.zeros(1, 4, 5, 3), ValueError, "(height, width)"),
        (numpy.zeros((0, 4), dtype=numpy.uint8), ValueError, "at least one pixel"),
        (numpy.zeros((4, 4), dtype=int), ValueError, ".astype('uint8')"),
        (torch.zeros(4, 4, dtype=torch.bool), ValueError, "bool"),
        ([[1, 2], [3, 4]], TypeError, "numpy.asarray"),
        (None, TypeError, "NoneType"),
        (b"", ValueError, "media_type"),
        (PIL.Image.new("F", (2, 2)), ValueError, "convert('RGB')"),
    ],
    ids=lambda it: it if isinstance(it, str) else "",
)
def test_a_source_that_is_no_picture_is_refused_with_the_fix(
    source: Any, error: type[Exception], said: str
) -> None:
    with pytest.raises(error) as caught:
        Image(source)
    assert said in str(caught.value)


def test_a_picture_of_pillow_is_kept_as_png() -> None:
    picture = PIL.Image.fromarray((PIXELS * 255).astype("uint8"))
    image = Image(picture, caption="c")
    assert (decoded(image) == numpy.asarray(picture)).all()
    (item,) = image.value()["items"]
    assert (item["width"], item["height"], item["caption"]) == (6, 4, "c")


@pytest.mark.parametrize("kind", [Image, Audio, Video])
def test_bytes_and_files_are_taken_as_they_are(kind: type, tmp_path: Path) -> None:
    path = tmp_path / "sound.OGG"
    path.write_bytes(b"content")
    digest = sha256(b"content").hexdigest()
    expected = {
        "items": [
            {
                "source": {"artifact": {"id": f"pending:{digest}", "sha256": digest}},
                "media_type": "audio/ogg",
            }
        ]
    }
    medium = kind(str(path))
    path.unlink()
    assert medium.value() == expected
    (blob,) = medium.blobs()
    assert (blob.hash, blob.media_type, blob.data) == (digest, "audio/ogg", b"content")
    typed = f"{kind.family}/web{'p' if kind is Image else 'm'}"
    (blob,) = kind(bytearray(b"content"), media_type=typed).blobs()
    assert (blob.hash, blob.media_type, blob.data) == (digest, typed, b"content")


def test_a_type_of_another_family_is_refused_with_the_method_to_call() -> None:
    for kind, media_type, fix in (
        (Image, "audio/wav", r"Run\.audio\(\)"),
        (Audio, "image/png", r"Run\.image\(\)"),
        (Video, "audio/webm", r"Run\.audio\(\)"),
    ):
        with pytest.raises(ValueError, match=fix):
            kind(b"x", media_type=media_type)


def test_bytes_that_look_like_another_type_are_kept_and_warned_of_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(looks, "_warned", set())
    heads = {
        "image/png": PNG,
        "image/jpeg": b"\xff\xd8\xff\xe0",
        "image/gif": b"GIF89a",
        "image/webp": b"RIFF\n\0\0\0WEBP",
        "audio/wav": b"RIFF\n\0\0\0WAVE",
        "video/mp4": b"\0\0\0\x18ftypisom",
    }
    for media_type, head in heads.items():
        Medium(head, media_type=media_type)
    Medium(b"\0\0\0\x18ftypavif", media_type="image/avif")
    Medium(b"\0\0\0\x08moov", media_type="video/mp4")
    Medium(b"abc", media_type="audio/mpeg")
    assert caplog.messages == []
    for _ in range(2):
        assert Image(b"abc", media_type="image/png").blobs()[0].data == b"abc"
    (said,) = caplog.messages
    assert "does not begin as such files do" in said
    for number, (name, head) in enumerate(heads.items(), 1):
        assert Medium(head, media_type="audio/flac").blobs()[0].data == head
        assert f"looks like {name}" in caplog.messages[-1]
        assert len(caplog.records) == 1 + number


def test_a_file_that_is_none_is_an_os_error_and_nobody_waits_for_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "folder.png").mkdir()
    for name in ("pipe.png", "folder.png", "missing.png"):
        with pytest.raises(OSError):
            Image(tmp_path / name)


def test_sizes_types_and_captions_have_limits(tmp_path: Path) -> None:
    largest = bytes(16 << 20)
    assert Image(largest, media_type="image/png").blobs()[0].data == largest
    (tmp_path / "large.png").write_bytes(largest + b"x")
    (tmp_path / "empty.png").write_bytes(b"")
    for refused in (
        lambda: Image(tmp_path / "large.png"),
        lambda: Image(memoryview(largest + b"x"), media_type="image/png"),
        lambda: Image(tmp_path / "empty.png"),
        lambda: Image(b"", media_type="image/png"),
        lambda: Image(tmp_path / "x.bmp"),
        lambda: Image(b"x", media_type="image/bmp"),
        lambda: Image(b"x", media_type="image/png", caption=""),
        lambda: Image(b"x", media_type="image/png", caption="x" * 257),
        lambda: Audio(b"x"),
    ):
        with pytest.raises(ValueError):
            refused()
    for array in (numpy.zeros(8), [0.5]):
        with pytest.raises(TypeError, match="path or bytes"):
            Audio(array)  # type: ignore[arg-type]


def test_a_grid_takes_media_and_items() -> None:
    link = media_url("https://example.org/b.png", "image/png", caption="c")
    item = {**Image(PIXELS).item(), "duration_ms": 5}
    grid = MediaGrid([Image(PIXELS), link, item])
    assert grid.value()["items"] == [Image(PIXELS).item(), link, item]
    assert len(grid.blobs()) == 1
    for refused in (
        [],
        [link] * 65,
        [Text("x")],
        ["x.png"],
        [{"source": {}}],
        [{**link, "width": -1}],
    ):
        with pytest.raises(ValueError):
            MediaGrid(refused)
    with pytest.raises(TypeError):
        MediaGrid("x.png")


@pytest.mark.parametrize(
    "href",
    [
        "http://example.org/b.png",
        "https:///b.png",
        "//example.org/b",
        "file:///x",
        "https://[",
        "https://" + "x" * 2048,
        3,
    ],
)
def test_an_address_is_absolute_and_https(href: Any) -> None:
    with pytest.raises(ValueError):
        media_url(href, "image/png")


def test_a_png_is_made_of_its_samples() -> None:
    png = encode_png(1, 2, 3, b"abcdef")
    assert png.startswith(PNG)
    assert PIL.Image.open(io.BytesIO(png)).tobytes() == b"abcdef"
    for wrong in ((1, 2, 3, b"abcde"), (0, 2, 3, b""), (1, 1, 2, b"ab")):
        with pytest.raises(ValueError):
            encode_png(*wrong)


@given(st.text(max_size=50), st.none() | st.sampled_from(["plain", "markdown"]))
def test_a_text_is_kept_as_it_is(text: str, format: str | None) -> None:
    value = Text(text, format=format).value()
    assert value == {"text": text} | ({"format": format} if format else {})


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("x" * 65_537, {}),
        ("x" * 10_000_000, {}),
        (3, {}),
        ("\ud800", {}),
        ("x", {"format": "html"}),
        ("x", {"caption": ""}),
        ("x", {"caption": 3}),
    ],
    ids=lambda it: str(it)[:9],
)
def test_a_text_that_is_none_is_refused(text: Any, options: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        Text(text, **options)


def test_the_base_is_there_for_values_of_others() -> None:
    class Mine(RichValue):
        renderer = "text"

    assert Mine().blobs() == []
    with pytest.raises(NotImplementedError):
        Mine().value()
