"""Look at more than numbers: pictures, texts, tables and histograms, at the steps they belong to.

Look at what is printed: everything was on disk when its call returned, and is read back from there.
The files are in `media/` of the run directory, each under the digest of its bytes, so that equal
pictures are stored, and later sent, once.
"""

import math
import random
import struct

import launchhelm
import launchhelm.rich


def tone(hertz: float, seconds: float = 0.2, rate: int = 8000) -> bytes:
    """Return a WAV file of a sine: 16 bits, one channel."""
    count = int(seconds * rate)
    angle = 2 * math.pi * hertz / rate
    samples = (int(20_000 * math.sin(angle * number)) for number in range(count))
    data = b"".join(struct.pack("<h", sample) for sample in samples)
    head = struct.pack("<4sIHHIIHH", b"fmt ", 16, 1, 1, rate, 2 * rate, 2, 16)
    body = b"WAVE" + head + struct.pack("<4sI", b"data", len(data)) + data
    return b"RIFF" + struct.pack("<I", len(body)) + body


def picture(step: int, size: int = 32) -> bytes:
    """Return a PNG; with NumPy, torch or Pillow, hand the array or image itself to `run.image`."""
    pixels = bytes((x * y + 8 * step) % 256 for y in range(size) for x in range(size))
    return launchhelm.rich.encode_png(size, size, 1, pixels)


with launchhelm.init("quickstart", name="media") as run:
    for step in range(3):
        gradients = [random.gauss(0, 1 / (step + 1)) for _ in range(1000)]
        run.log(
            {
                "loss": 1 / (step + 1),
                "gradients": launchhelm.Histogram(gradients),
                "sample": launchhelm.Image(picture(step), media_type="image/png", caption="x*y"),
            },
            step=step,
        )
        run.text("prompt", f"**Step {step}**: once upon a time", format="markdown", step=step)
        # NaN in a table becomes an empty cell.
        run.rows(
            "eval", [{"task": "a", "score": 0.5 + step / 10}, {"task": "b", "score": math.nan}]
        )
    run.audio("voice", tone(440), media_type="audio/wav", caption="440 Hz")
    gallery = [launchhelm.Image(picture(step), media_type="image/png") for step in range(3)]
    run.media("gallery", [*gallery, run.media_url("https://example.org/cat.png", "image/png")])

    print(f"{len(run.fetch('voice')):,} bytes of sound, {len(run.fetch('sample')):,} of a picture")
    for name in ("prompt", "eval", "gradients", "gallery"):
        print(f"{name}: {run.latest(name)['value']!s:.100}")
    print("files:", len(list((run.directory / "media").iterdir())))
