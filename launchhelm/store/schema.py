"""The tables of a sealed segment, format 1.

    meta    key, value: the open line of the journal as JSON, first_seq, first_ms, records, ...
    record  one row per record: seq (from meta.first_seq), step, ms (from meta.first_ms), axes
    point   one row per metric value; id = series << 20 | seq, so that rows of a series lie together
    series  one row per metric name and class of value
    entry   kind and JSON body of every record; metric records ("m") have no row, "sys" no body
    block   sums of each 256 consecutive points of a name, under its first series; `odd` of the n
            are no finite numbers and stand in no sum
    metric  view for people: seq, name, step, ts, value
    event   view for people: seq, kind, step, ts, body

The key of `point` is one integer because SQLite appends to such a table at its end: pages are full
(18.1 bytes a point against 20.5 with a two-column key) and nothing has to be compared.

Columns that hold values have no type, so that SQLite keeps class and sign as they were given:
a float stays a float, -0.0 keeps its sign, an integer all its digits. Steps and integers beyond 64
bits are decimal text.
"""

from __future__ import annotations

from typing import Final

APPLICATION_ID: Final = 0x4C48524E
"""The letters LHRN."""

SEQ_BITS: Final = 20
MAX_RECORDS: Final = (1 << SEQ_BITS) - 1
"""Records of one segment; the writer starts a new one before that."""

MAX_SERIES: Final = (1 << 63 - SEQ_BITS) - 1
BLOCK_POINTS: Final = 256
PAGE_BYTES: Final = 4096

CLASSES: Final = ("float", "int", "bool", "str", "special", "bigint", "json")
"""How `point.value` is to be read: special is NaN or an infinity, json is any other value."""

_SEQ: Final = f"(p.id & {MAX_RECORDS}) + (SELECT value FROM meta WHERE key = 'first_seq')"
_TS: Final = "(r.ms + (SELECT value FROM meta WHERE key = 'first_ms')) / 1000.0"

SCRIPT: Final = f"""
PRAGMA page_size = {PAGE_BYTES};
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = 1;
CREATE TABLE meta  (key TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE record(seq INTEGER PRIMARY KEY, step, ms INTEGER NOT NULL, axes TEXT);
CREATE TABLE series(id INTEGER PRIMARY KEY, name TEXT NOT NULL, class TEXT NOT NULL);
CREATE TABLE point (id INTEGER PRIMARY KEY, value);
CREATE TABLE entry (seq INTEGER PRIMARY KEY, kind TEXT NOT NULL, body TEXT);
CREATE TABLE block (series INTEGER NOT NULL, first_seq INTEGER NOT NULL, last_seq INTEGER NOT NULL,
                    first_step, last_step, n INTEGER NOT NULL, sum, min, max, first, last,
                    odd INTEGER NOT NULL, PRIMARY KEY (series, first_seq)) WITHOUT ROWID;
CREATE VIEW metric AS
  SELECT {_SEQ} AS seq, s.name AS name, r.step AS step, {_TS} AS ts, p.value AS value
  FROM series s
  JOIN point p ON p.id BETWEEN s.id << {SEQ_BITS} AND (s.id << {SEQ_BITS}) + {MAX_RECORDS}
  JOIN record r ON r.seq = p.id & {MAX_RECORDS};
CREATE VIEW event AS
  SELECT e.seq + (SELECT value FROM meta WHERE key = 'first_seq') AS seq, e.kind AS kind,
         r.step AS step, {_TS} AS ts, e.body AS body
  FROM entry e JOIN record r ON r.seq = e.seq;
"""
