"""What was found of a shard's carry files, segments and rows, in words."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import get_args

from headrace.doctor.findings.carry_findings import CarryWords
from headrace.doctor.findings.finding import (
    Finding,
    Loss,
    LostRows,
    count,
    in_words,
    joined,
    offsets,
    ops,
)
from headrace.doctor.findings.names import Names
from headrace.doctor.findings.words import apply_failed, finding
from headrace.doctor.look.deep_check import CarryState
from headrace.doctor.look.segments import SegmentState, footer_bytes
from headrace.doctor.look.shard_look import ShardSight, hidden, placed
from headrace.model.ids import Op
from headrace.partition.checkpoint_files import info_of
from headrace.partition.files.carry import carry_name, kept_id
from headrace.partition.machine.operations import APPEND, STAGE, Command
from headrace.partition.machine.state import Partition, Placed, Segment, Unplaced
from headrace.partition.segments.segment import parse_name
from headrace.partition.shard_store import CARRY, SEGMENTS

_KINDS = {
    APPEND: "an append",
    STAGE: "rows of a transaction, which is then not published",
    **{
        command.operation: f"a{'n' * command.__name__.startswith('O')} {command.__name__}"
        for command in get_args(Command)
    },
}


@dataclass(slots=True)
class ShardWords:
    """Turns what was found in a shard into findings."""

    shard: ShardSight
    where: str  # of the group, relative to the data directory
    names: Names
    segment_states: Mapping[str, SegmentState] = field(default_factory=dict)  # of a deep look
    carry_states: Mapping[str, CarryState] = field(default_factory=dict)
    told: set[Op] = field(default_factory=set)  # ops whose loss some finding explains

    def loss_of(self, first: Op, last: Op) -> Loss:
        """Say what is lost with some ops of the journal."""
        replayed = self.shard.replayed
        if replayed is None:
            words = f"not known: no snapshot tells what {ops(first, last)} did"
            return Loss(words, is_counted=False)
        rows = tuple(
            self.names.piece(partition, piece)
            for op, (partition, piece) in sorted(replayed.pieces().items())
            if first <= op <= last and not self.shard.is_readable(op)
        )
        self.told.update(op for op in replayed.pieces() if first <= op <= last)
        said = [in_words(rows)] if rows else []
        holes = [one for one in replayed.holes if one.last >= first and one.first <= last]
        for hole in holes:
            if hole.header is not None and hole.header.operation in _KINDS:
                said.append(f"op {hole.first:,}, {_KINDS[hole.header.operation]}")
            elif hole.header is None:
                start, end = max(hole.first, first), min(hole.last, last)
                said.append(f"{ops(start, end)}: what was there is not known{self._hints()}")
        if last > replayed.reached:
            said.append(f"what followed op {replayed.reached:,} is not known")
        is_counted = not holes and last <= replayed.reached
        copy = "nothing: a carry file has a copy"
        if first in self.shard.entries.strays:
            copy = "nothing: the entry itself is whole, and --salvage reads it"
        return Loss("; ".join(said) or copy, rows, is_counted)

    def _hints(self) -> str:
        """Say which partitions miss rows by their writers' counts."""
        assert self.shard.replayed is not None
        found = []
        for namespace, offset in sorted(self.shard.replayed.unsure.items()):
            partition = self.shard.replayed.machine.state.partitions[namespace]
            rows = self.names.rows(partition, offset, offset)
            found.append(f"{rows.topic} partition {rows.partition} from row {offset:,} on")
        return f"; old offsets are not sure in {', '.join(found)}" if found else ""

    def findings(self) -> list[Finding]:
        """Return what is wrong with files, then with rows that no file has."""
        carries = CarryWords(self.shard, self.where, self.names, self.carry_states, self.told)
        found = [*carries.findings(), *self._segments(), *self._unnamed(), *self._nowhere()]
        return [*found, *self._cursors(), *self._states(), *self._raising()]

    def _segments(self) -> Iterator[Finding]:
        there = set(self.shard.segments.names())
        for partition in self.shard.partitions:
            for segment in partition.segments:
                place = placed(segment)
                if place is not None:
                    yield from self._placed(partition, segment, place, there)
                else:
                    yield from self._unplaced(partition, segment)

    def _placed(
        self, partition: Partition, segment: Segment, place: Placed, there: set[str]
    ) -> Iterator[Finding]:
        name = info_of(segment, self.shard.group.identity).name
        state = self.segment_states.get(name)
        rows = (self.names.rows(partition, *hidden(partition, segment.first, segment.end)),)
        if name not in there:
            yield self._segment(name, "segment-gone", "the file is gone", rows, segment)
        elif state is not None and not state.is_whole:
            yield from self._bad_segment(partition, segment, place, state)
        elif state is None:
            flaw, position = self._glance(name, place)
            if flaw:
                yield self._segment(name, "segment-bad", flaw, rows, segment, position)

    def _bad_segment(
        self, partition: Partition, segment: Segment, place: Placed, state: SegmentState
    ) -> Iterator[Finding]:
        flaw, position = self._glance(state.name, place)
        if flaw or not state.bad:
            whole = hidden(partition, segment.first, segment.end)
            rows = (self.names.rows(partition, *whole),)
            # One that rots where no page is: all rows can be proven, and none is served.
            proven = () if state.readable else rows
            what = flaw or state.flaw
            if state.readable:
                what += "; every row group can still be proven"
            yield self._segment(state.name, "segment-bad", what, proven, segment, position)
            return
        for bad in state.bad:
            start, end = hidden(partition, bad.start, bad.end)
            bad_rows = (self.names.rows(partition, start, end),) if start < end else ()
            what = f"row group {bad.number} ({offsets(bad.start, bad.end)}): {_bare(bad.flaw)}"
            where = bad.position
            yield self._segment(state.name, "segment-rows", what, bad_rows, segment, where)

    def _glance(self, name: str, place: Placed) -> tuple[str, int | None]:
        """Look at a segment's footer and size, without reading a page of it."""
        size = self.shard.segments.size_of(name)
        try:
            file = self.shard.segments.open(name)
        except OSError as error:
            return f"cannot be opened: {error.strerror}", None
        try:
            footer = footer_bytes(file)
        finally:
            file.close()
        is_named = footer is not None and place.rows.hex().encode() in footer
        other = "" if footer is None or is_named else self._found_in(footer)
        if other:
            return f"it has the content of {other}", 0
        if size != place.size:
            what = "cut short" if size < place.size else "longer than it was"
            return f"{what}: {size:,} bytes, where {place.size:,} were written", size
        if footer is None:
            return "it does not end as a segment does", max(0, size - 8)
        if not is_named:
            position = size - 8 - len(footer)
            return "its footer does not name the rows that it should have", position
        return "", None

    def _found_in(self, footer: bytes) -> str:
        for name, one in self.shard.named_segments().items():
            if one.rows.hex().encode() in footer:
                return name
        if self.shard.group.identity.cluster.hex().encode() not in footer:
            return "a segment of another cluster"
        return ""

    def _segment(
        self,
        name: str,
        kind: str,
        what: str,
        rows: tuple[LostRows, ...],
        segment: Segment,
        position: int | None = None,
    ) -> Finding:
        lost = in_words(rows) if rows else "nothing: --salvage can prove every row"
        if rows and self._is_in_entries(segment, rows[0]):
            lost += "; --salvage finds entries that had them in the journal or a carry file"
        path = f"{self.where}/{SEGMENTS}/{name}"
        return finding(kind, path, loss=Loss(lost, rows), position=position, what=what)

    def _is_in_entries(self, segment: Segment, rows: LostRows) -> bool:
        """Say whether entries that are still here have all of these rows."""
        offset = rows.start
        for piece in self.shard.older_pieces(segment):
            if piece.end <= offset or offset >= rows.end:
                continue
            if piece.first > offset or not self.shard.entries.holds(piece.op):
                return False
            offset = piece.end
        return offset >= rows.end

    def _unplaced(self, partition: Partition, segment: Segment) -> Iterator[Finding]:
        assert isinstance(segment.place, Unplaced)
        name = info_of(segment, self.shard.group.identity).name
        if not segment.place.pieces:
            rows = (self.names.rows(partition, *hidden(partition, segment.first, segment.end)),)
            what = segment.place.flaw or "no snapshot says where it is"
            yield self._segment(name, "segment-unknown", what, rows, segment)
        elif segment.place.flaw:
            path = f"{self.where}/{SEGMENTS}/{name}"
            yield finding("segment-unsealed", path, flaw=segment.place.flaw)

    def _unnamed(self) -> Iterator[Finding]:
        """Find segments and carry files that no snapshot names, if there is one to name any."""
        if not self.shard.kept and self.shard.group.refusal is not None:
            return
        identity = self.shard.group.identity
        known = set(self.shard.named_segments()) | {
            info_of(one, identity).name
            for each in self.shard.partitions
            for one in each.segments
        }
        for name in self.shard.segments.names():
            if parse_name(name) is not None and name not in known:
                yield self._leftover(f"{SEGMENTS}/{name}", "segment")
        named = {carry_name(op) for op in self.shard.named_carries()}
        for name in (*self.shard.entries.carries, *self.shard.entries.ruins):
            if name not in named and kept_id(name) is None:
                yield self._leftover(f"{CARRY}/{name}", "carry file")
        if named <= self.shard.entries.carries.keys():  # each says what it needs
            for name in filter(kept_id, self.shard.entries.ruins):
                yield self._leftover(f"{CARRY}/{name}", "kept journal file")

    def _leftover(self, path: str, noun: str) -> Finding:
        return finding("unnamed", f"{self.where}/{path}", noun=noun)

    def _nowhere(self) -> Iterator[Finding]:
        """Find rows whose entries are in no file, where nothing above has said so."""
        replayed = self.shard.replayed
        live = replayed.pieces() if replayed is not None else {}
        gone = [
            op for op in sorted(live) if not self.shard.is_served(op) and op not in self.told
        ]
        if gone:
            rows = joined([self.names.piece(*live[op]) for op in gone])
            yield finding(
                "rows-nowhere",
                f"{self.where}/{CARRY}",
                loss=Loss(in_words(rows), rows),
                first_op=gone[0],
                last_op=gone[-1],
                entries=count(len(gone), "entry", "entries"),
            )

    def _cursors(self) -> Iterator[Finding]:
        for partition in self.shard.partitions:
            for group, cursor in sorted(partition.cursors.items()):
                if cursor.next > partition.end:
                    rows = self.names.rows(partition, partition.end, cursor.next)
                    yield finding(
                        "cursor-beyond",
                        self.where,
                        loss=Loss(str(rows), (rows,), is_counted=False),
                        group=group,
                        following=cursor.next,
                        end=partition.end,
                    )

    def _raising(self) -> Iterator[Finding]:
        replayed = self.shard.replayed
        for op, what in replayed.raising.items() if replayed is not None else ():
            yield apply_failed(self.where, op, what, self.loss_of(op, op))

    def _states(self) -> Iterator[Finding]:
        unknown = Loss("not known", is_counted=False)
        for op, flaw in self.shard.bad_states.items():
            path = f"{self.where}/snapshots/{op:020}.snap"
            yield finding("snapshot-state", path, loss=unknown, first_op=op, flaw=flaw)


def _bare(flaw: str) -> str:
    """Drop the row group's number, which is said already."""
    head, _, rest = flaw.partition(": ")
    return rest if head.startswith("row group") else flaw
