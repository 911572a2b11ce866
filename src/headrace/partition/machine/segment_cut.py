"""Chooses the runs that become segments at a Seal, by body bytes and Seals waited only.

Partitions with equal traffic would all come due at one Seal, which would write a file for each
while the Seals around it write none. So the limits of a partition lie between half and all of
the constants, by its namespace alone. Partitions that begin together would still have nothing
due for as long as the shortest takes, and then everything: so the first segment of each is due
at a fraction of its limit.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from headrace.model.ids import Op
from headrace.partition.machine.state import Partition, Piece, Run, Segment, Unplaced


@dataclass(frozen=True, slots=True)
class SegmentSizes:
    """Cluster constants. Replicas that differ in them would differ in their segments."""

    size_min: int = 8 * 1024 * 1024  # smaller runs are carried: small files are a burden
    size_target: int = 256 * 1024 * 1024  # a longer run becomes several: two fill a Seal
    waited_max: int = 16  # Seals that a small run is carried through
    first_min: int = 1024 * 1024  # for a partition's first segment

    def of(self, namespace: int) -> tuple[int, int]:
        """Return the size from which a run is due, and how many Seals a smaller one waits.

        Neighbouring namespaces lie far apart in both, and many of them fill the range evenly.
        """
        share = namespace * _GOLDEN % 2**64
        size, waited = (
            most - ((most // 2 + 1) * share >> 64) for most in (self.size_min, self.waited_max)
        )
        return size, waited

    def first_of(self, namespace: int) -> int:
        """Return the size from which the first run of a partition is due."""
        size, _ = self.of(namespace)
        return max(size * (namespace * _SILVER % 2**64) >> 64, min(self.first_min, size))


SEGMENT_SIZES: Final = SegmentSizes()
_GOLDEN: Final = 0x9E3779B97F4A7C15  # 2**64 / golden ratio: its multiples fill a ring evenly
_SILVER: Final = 0x6A09E667F3BCC909  # 2**64 * (sqrt(2) - 1): so do these, beside those


def cut(partition: Partition, op: Op, tip: bytes, sizes: SegmentSizes) -> list[Segment]:
    """Turn the runs that are due into segments; the others wait one more Seal."""
    made: list[Segment] = []
    carried: list[Run] = []
    size_due, waited_due = sizes.of(partition.namespace)
    for run in partition.runs:
        # Offsets never restart: this is only about the very first rows.
        least = size_due if run.first else sizes.first_of(partition.namespace)
        if run.size >= least or run.waited >= waited_due:
            files = _files(run.pieces, sizes)
            made += [_segment(partition, run, pieces, op, tip) for pieces in files]
        else:
            run.waited += 1
            carried.append(run)
    if made:
        segments = sorted((*partition.segments, *made), key=lambda one: one.first)
        # In this order, a reader in another thread finds each row in one of them, or in both.
        partition.segments = tuple(segments)
        partition.runs = carried
    return made


def _files(pieces: Sequence[Piece], sizes: SegmentSizes) -> Iterator[tuple[Piece, ...]]:
    """Split a run's pieces into files of about the target size; the last takes a short rest."""
    size_left = sum(piece.size for piece in pieces)
    file: list[Piece] = []
    size = 0
    for piece in pieces:
        file.append(piece)
        size += piece.size
        size_left -= piece.size
        if size >= sizes.size_target and size_left >= sizes.size_min:
            yield tuple(file)
            file, size = [], 0
    if file:
        yield tuple(file)


def _segment(
    partition: Partition, run: Run, pieces: tuple[Piece, ...], op: Op, tip: bytes
) -> Segment:
    return Segment(
        namespace=partition.namespace,
        created=partition.created,
        first=pieces[0].first,
        end=pieces[-1].end,
        version=run.version,
        first_op=min(piece.op for piece in pieces),
        seal_op=op,
        tip=tip,
        first_timestamp=pieces[0].timestamp,
        last_timestamp=pieces[-1].timestamp,
        size=sum(piece.size for piece in pieces),
        place=Unplaced(pieces),
    )
