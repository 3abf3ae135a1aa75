"""The limits of the v1 API, each with its name."""

from __future__ import annotations

from typing import Final

PROTOCOL: Final = "1.0"

# JSON
MAX_DOCUMENT_BYTES: Final = 1 << 20
"""A request body other than grouped telemetry; a batch; whatever has a canonical form."""
MAX_DEPTH: Final = 32
"""The root has depth 0."""
MAX_VALUES: Final = 50_000
"""Objects, arrays and scalars of one document; keys do not count."""
MAX_LITERAL: Final = 64
"""Characters of one number."""
MIN_EXPONENT: Final = -324
MAX_EXPONENT: Final = 308
MAX_SAFE_INTEGER: Final = (1 << 53) - 1
MAX_ANSWER_BYTES: Final = 8 << 20
"""A decoded answer."""

# Telemetry
MAX_UNBOUND_POINT_BYTES: Final = 524_160
"""An encoded point before its sequence is added."""
MAX_POINT_BYTES: Final = 524_288
MAX_POINTS_PER_BATCH: Final = 1000
BATCH_HEAD_BYTES: Final = 1024
"""What is set aside for the members of a batch beside its points."""
MAX_BATCH_BYTES: Final = MAX_DOCUMENT_BYTES - 1024
"""Points of a batch together, and BATCH_HEAD_BYTES."""
MAX_BATCHES: Final = 256
MAX_REQUEST_BYTES: Final = 1_044_480
"""A grouped request; its first batch is sent even when it alone is larger."""
MAX_COORDINATES: Final = 32
MAX_COORDINATE: Final = 128
MAX_COORDINATE_UNIT: Final = 64

# Documents
MAX_DOCUMENTS_PER_BATCH: Final = 1024
MAX_NAME: Final = 256
"""Characters of the name of a metric, a run or a project."""
MAX_UNIT: Final = 64
MAX_AXIS: Final = 128
MAX_LABELS: Final = 64
"""Entries of a config that become labels."""
MAX_LABEL: Final = 1024
MAX_GROUP: Final = 256
MAX_TAG: Final = 64
MAX_HOST: Final = 256
PAGE: Final = 100
"""What the official client asks for at a time."""
MAX_PAGE: Final = 1000
POINTS_PAGE: Final = 1000
MAX_POINTS_PAGE: Final = 10_000

# Sessions and commands
MAX_SAFE_POINTS: Final = 64
MAX_CLAIM_WAIT_MS: Final = 19_000
MAX_FAILURE_CODE: Final = 128

# Artifacts and rich values
MIN_PART_BYTES: Final = 5 << 20
PART_BYTES: Final = 16 << 20
MAX_PART_BYTES: Final = 64 << 20
MAX_PARTS: Final = 10_000
MAX_TEXT: Final = 65_536
MAX_CONSOLE_LINE: Final = 1024
