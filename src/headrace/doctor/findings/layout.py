"""The names that belong in a data directory, and the findings about all other names."""

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from headrace.doctor.findings.finding import Finding, count
from headrace.doctor.findings.words import finding
from headrace.doctor.look.group_look import JOURNAL, SNAPSHOTS, SPARE
from headrace.doctor.look.readonly import ReadonlyDirectory
from headrace.errors import UnsupportedFormat
from headrace.journal.entry import Flaw
from headrace.journal.heads import NAME as HEADS_NAME
from headrace.journal.journal_file import BLOCK_SIZE, decode_block, first_op_of
from headrace.journal.superblock import NAMES
from headrace.model.ids import GroupId
from headrace.node.bootstrap import CONFIG_NAME
from headrace.node.doubt.heal import NEW, is_old
from headrace.node.doubt.metadata_copy import NAME as COPY_NAME
from headrace.node.identity import GROUPS, METADATA, group_name, is_group
from headrace.node.identity import NAME as CLUSTER_NAME
from headrace.partition.files.carry import kept_id, op_of
from headrace.partition.segments.segment import parse_name
from headrace.partition.shard_store import CARRY, QUARANTINE, SEGMENTS
from headrace.storage.atomic import is_leftover
from headrace.storage.lock import LOCK_NAME
from headrace.wire.address import SOCKET_NAME

REPORT_NAME: Final = "salvage.json"  # the report that a salvage leaves in the new log

_SNAPSHOT = re.compile(r"[0-9]{20}\.snap")
_SPARE = re.compile(r"[0-9a-f]{16}\.wal")
_ROOT_NAMES: Final = frozenset(
    {LOCK_NAME, CONFIG_NAME, CLUSTER_NAME, HEADS_NAME, COPY_NAME, SOCKET_NAME, REPORT_NAME}
)

Knows = Callable[[str], bool]


def strangers(
    root: ReadonlyDirectory, groups: list[GroupId], known: Iterable[str] = ()
) -> Iterator[Finding]:
    """Find leftovers, and files and directories that Headrace did not create."""
    rooms = {GROUPS, LOCK_NAME, CONFIG_NAME, CLUSTER_NAME, HEADS_NAME, COPY_NAME, *known}
    yield from _names(root, "", _ROOT_NAMES.__contains__, rooms)
    home = root.within(GROUPS)
    aside = {name for name in home.rooms() if is_old(name) or name == NEW}
    yield from _names(
        home, GROUPS, lambda _: False, {group_name(one) for one in groups} | aside
    )
    for name in sorted(aside):
        yield finding("leftover: group" if name == NEW else "set-aside", f"{GROUPS}/{name}")
    for group in groups:
        yield from _in_group(home.within(group_name(group)), group)


def _in_group(room: ReadonlyDirectory, group: GroupId) -> Iterator[Finding]:
    where = f"{GROUPS}/{group_name(group)}"
    rooms = {JOURNAL, SNAPSHOTS, QUARANTINE}
    if group != METADATA:
        rooms |= {SEGMENTS, CARRY}
    yield from _names(room, where, NAMES.__contains__, rooms)
    journal = room.within(JOURNAL)
    yield from _names(journal, f"{where}/{JOURNAL}", _is_wal, {SPARE})
    spare = f"{where}/{JOURNAL}/{SPARE}"
    yield from _names(journal.within(SPARE), spare, _matches(_SPARE), set())
    yield from _twins(journal, spare)
    snapshots = f"{where}/{SNAPSHOTS}"
    yield from _names(room.within(SNAPSHOTS), snapshots, _matches(_SNAPSHOT), set())
    if group != METADATA:
        segments = f"{where}/{SEGMENTS}"
        yield from _names(room.within(SEGMENTS), segments, _is_segment, set())
        yield from _names(room.within(CARRY), f"{where}/{CARRY}", _is_carry, set())
    yield from _quarantined(room.within(QUARANTINE), f"{where}/{QUARANTINE}")


def _names(
    room: ReadonlyDirectory, where: str, knows: Knows, rooms: set[str]
) -> Iterator[Finding]:
    for name in room.names():
        if is_leftover(name):
            yield finding("leftover", _joined(where, name), size=_size(room, name))
        elif not knows(name):
            yield finding("stranger", _joined(where, name), noun="file")
    for name in room.rooms():
        if name in NAMES and knows(name):
            yield finding("not-a-file", _joined(where, name))
        elif name not in rooms:
            is_bare = where == GROUPS and name.isdecimal() and not is_group(room.within(name))
            case = "stranger: group" if is_bare else "stranger"
            yield finding(case, _joined(where, name), noun="directory")


def _size(room: ReadonlyDirectory, name: str) -> str:
    return count(room.size_of(name), "byte")


def _twins(journal: ReadonlyDirectory, where: str) -> Iterator[Finding]:
    """Find spares that are a second name of a live file, or have an invalid size."""
    live = {_file_id(journal, name) for name in journal.names() if _is_wal(name)} - {None}
    spares = journal.within(SPARE)
    for name in spares.names():
        file_id = _file_id(spares, name)
        if not is_leftover(name) and file_id is not None and file_id in live:
            yield finding("spare-twin", f"{where}/{name}")
        elif not is_leftover(name) and spares.size_of(name) % BLOCK_SIZE:
            yield finding("spare-size", f"{where}/{name}", size=_size(spares, name))


def _file_id(room: ReadonlyDirectory, name: str) -> int | None:
    try:
        file = room.open(name)
    except OSError:
        return None
    try:
        header = decode_block(file.read(0, BLOCK_SIZE), file.path)
    except (OSError, UnsupportedFormat):
        return None
    finally:
        file.close()
    return None if isinstance(header, Flaw) else header.file_id


def _quarantined(room: ReadonlyDirectory, where: str) -> Iterator[Finding]:
    for name in room.names():
        yield finding("quarantined", f"{where}/{name}", size=_size(room, name))


def _matches(pattern: re.Pattern[str]) -> Knows:
    return lambda name: pattern.fullmatch(name) is not None


def _is_wal(name: str) -> bool:
    return first_op_of(name) is not None


def _is_segment(name: str) -> bool:
    return parse_name(name) is not None


def _is_carry(name: str) -> bool:
    return op_of(name) is not None or kept_id(name) is not None


def _joined(where: str, name: str) -> str:
    return f"{where}/{name}" if where else name
