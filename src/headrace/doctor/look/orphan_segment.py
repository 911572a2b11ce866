"""A segment that no snapshot vouches for, read by its own footer, name and rows.

Its footer has no checksum, so it counts only where something else confirms it. The row digest
proves rows, offsets, times and the partition's number; the name, or offsets that differ from
the name's, identify the partition. In a damaged file each row group is proven by itself, as in
any other segment.
"""

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from headrace.doctor.look.readonly import ReadonlyDirectory
from headrace.doctor.look.segments import (
    SegmentState,
    SegmentTask,
    check_segment,
    footer_bytes,
    rows_in,
)
from headrace.errors import BadSchema, Corrupt, first_line
from headrace.model.ids import Identity, Offset, Op
from headrace.model.namespace import NamespaceLayout
from headrace.model.schema import SYSTEM_FIELDS, encode_schema
from headrace.partition.segments.segment import (
    OFFSET,
    ROW_DIGEST_KEY,
    TIMESTAMP,
    Digests,
    SegmentInfo,
    format_of,
    parse_name,
    rows_schema_of,
)
from headrace.partition.segments.segment_reader import open_parquet
from headrace.storage.seam import Storage
from headrace.storage.stream import whole_digest


@dataclass(frozen=True, slots=True)
class LoneTask:
    """One file that may be a segment of a group."""

    directory: str
    name: str
    identity: Identity


@dataclass(frozen=True, slots=True)
class TimedRows:
    """Adjacent rows that got their offsets at one time."""

    timestamp: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class LoneState:
    """What a file claims to be, and what of it is proven."""

    name: str
    flaw: str = ""  # of the whole file; no row can be read from it then
    task: SegmentTask | None = None  # how to read it, if it is a segment of this group
    state: SegmentState | None = None
    times: tuple[TimedRows, ...] = ()  # of what can be proven, by offset

    @property
    def place(self) -> tuple[int, int, int, int] | None:
        """Namespace, created, first and end: from the footer, or from the name alone."""
        if self.task is None:
            return parse_name(self.name)
        info = self.task.info
        return info.namespace, info.created, info.first, info.end

    @property
    def first(self) -> int:
        return self.place[2] if self.place is not None else 0

    @property
    def end(self) -> int:
        return self.place[3] if self.place is not None else 0

    @property
    def why(self) -> str:
        """Why some of its rows cannot be read; empty if all can."""
        return self.flaw or (self.state.flaw if self.state is not None else "")


def check_lone(task: LoneTask) -> LoneState:
    """Read a footer, then every row that it promises. Runs in a child process."""
    try:
        storage = ReadonlyDirectory(task.directory).open(task.name)
    except OSError as error:
        return LoneState(task.name, f"cannot be opened: {error.strerror}")
    try:
        found = _described(task, storage)
        if isinstance(found, str):
            return LoneState(task.name, found)
        state = check_segment(found)
        times = _times(found, state, storage)
    except (Corrupt, OSError, pa.ArrowException) as error:
        return LoneState(task.name, str(error))
    finally:
        storage.close()
    return LoneState(task.name, "", found, state, times)


def _described(task: LoneTask, storage: Storage) -> SegmentTask | str:
    """Return the check to run, by the footer; or why there is none."""
    if footer_bytes(storage) is None:
        return "it does not end like a segment"
    try:
        said = open_parquet(storage).metadata.metadata or {}
        schema = rows_schema_of(said, format_of(said, task.name))
        texts = {key.decode(): value.decode() for key, value in said.items()}
        info = _info(texts)
        user = encode_schema(pa.schema(list(schema)[len(SYSTEM_FIELDS) :]))
        rows = bytes.fromhex(texts[ROW_DIGEST_KEY])
    except (pa.ArrowException, OSError, ValueError, KeyError, AssertionError) as error:
        why = first_line(error)
        return f"its footer cannot be read ({why})"
    except BadSchema as error:
        return f"its footer has no valid topic schema ({error})"
    flaw = _stranger(task, texts, info)
    if flaw:
        return flaw
    digests = Digests(rows, whole_digest(storage), storage.size())
    return SegmentTask(task.directory, task.name, info, digests, user)


def _info(texts: dict[str, str]) -> SegmentInfo:
    def number(key: str) -> int:
        return int(texts[f"headrace.{key}"])

    return SegmentInfo(
        cluster=bytes.fromhex(texts["headrace.cluster"]),
        group=number("group"),
        namespace=number("namespace"),
        created=number("created"),
        first=Offset(number("first")),
        end=Offset(number("end")),
        first_op=Op(number("first_op")),
        seal_op=Op(number("seal_op")),
        tip=bytes.fromhex(texts["headrace.tip"]),
        schema_id=number("schema_id"),
    )


def _stranger(task: LoneTask, texts: dict[str, str], info: SegmentInfo) -> str:
    """Say why a segment does not belong to this group, or that its name and footer differ."""
    if (info.cluster, info.group) != (task.identity.cluster, task.identity.group):
        return "it belongs to another cluster or group"
    if not NamespaceLayout(*task.identity.namespace_bits).holds(info.namespace):
        return f"its footer names an impossible partition: {info.namespace:x}"
    named = parse_name(task.name)
    is_renamed = named is None or named[2:] != (info.first, info.end)
    if not is_renamed and named is not None and named[:2] != (info.namespace, info.created):
        return "its footer and its name name different partitions"
    return ""


def _times(task: SegmentTask, state: SegmentState, storage: Storage) -> tuple[TimedRows, ...]:
    """Return when the provable rows got their offsets."""
    found: list[TimedRows] = []
    for batch in rows_in(storage, task, state) if state.readable else ():
        first = batch.column(OFFSET)[0].as_py()
        runs = pc.run_end_encode(batch.column(TIMESTAMP).cast(pa.int64()))
        start = 0
        for time, end in zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True):
            _add(found, TimedRows(time, first + start, first + end))
            start = end
    return tuple(found)


def _add(found: list[TimedRows], rows: TimedRows) -> None:
    """Add rows, joined to the previous ones if both came from one entry."""
    last = found[-1] if found else None
    if last is not None and (last.timestamp, last.end) == (rows.timestamp, rows.start):
        found[-1] = TimedRows(rows.timestamp, last.start, rows.end)
    else:
        found.append(rows)
