"""One digest of rows, whatever their source: the ledgers, the log, the table.

It is the SHA-256 of the rows as pyarrow writes them in CSV, by partition and offset. The rows
of the ledgers are regenerated from their lines: a producer's rows follow from their numbers.
"""

import hashlib
from collections.abc import Sequence
from typing import Final

import pyarrow as pa
from pyarrow import csv

from headrace.cli.demo.checks import Claim
from headrace.cli.demo.demo_rows import SCHEMA, rows_of

PLACE: Final = ("_partition", "_offset")
COLUMNS: Final = (*SCHEMA.names, *PLACE)
SHOWN: Final = 16  # characters of a digest that are printed


def digest_of(rows: pa.Table) -> str:
    """Return the digest of rows, which have COLUMNS, in any order."""
    ordered = rows.select(COLUMNS).sort_by([(name, "ascending") for name in PLACE])
    found = _Digest()
    csv.write_csv(ordered, found)
    return found.sha.hexdigest()


def acknowledged_rows(claims: Sequence[Claim]) -> pa.Table:
    """Return the rows in the ledgers, as their producers created them."""
    parts = []
    for claim in claims:
        for told in claim.told:
            rows = pa.Table.from_batches([rows_of(claim.source, told.start, told.end)])
            places = pa.array([claim.source] * rows.num_rows, pa.int32())
            rows = rows.append_column(PLACE[0], places)
            parts.append(rows.append_column(PLACE[1], rows["number"]))
    return pa.concat_tables(parts)


class _Digest:
    """A file that keeps only the digest of what is written."""

    closed = False

    def __init__(self) -> None:
        self.sha = hashlib.sha256()

    def write(self, data: bytes) -> int:
        self.sha.update(data)
        return len(data)

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass
