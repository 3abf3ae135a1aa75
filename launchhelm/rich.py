"""Rich values: what is logged beside scalars, and the parts that they are made of.

    run.log({"sample": launchhelm.Image(pixels), "gradients": launchhelm.Histogram(gradient)})

docs/media.md shows each kind. Limits are those of the v1 API, so that whatever could be made can
be sent.
"""

from launchhelm.values.base import PendingBlob, RichValue
from launchhelm.values.histogram import Histogram, bin_values
from launchhelm.values.image import Image, encode_png
from launchhelm.values.media import Audio, MediaGrid, Video, media_url
from launchhelm.values.table import Table, compile_columns, compile_rows, infer_columns
from launchhelm.values.text import Text

__all__ = [
    "Audio",
    "Histogram",
    "Image",
    "MediaGrid",
    "PendingBlob",
    "RichValue",
    "Table",
    "Text",
    "Video",
    "bin_values",
    "compile_columns",
    "compile_rows",
    "encode_png",
    "infer_columns",
    "media_url",
]
