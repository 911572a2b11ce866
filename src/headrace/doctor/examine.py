"""Look at a whole data directory, and say in words what is there. Nothing is changed.

    who       lock, identity, config
    rooms     names that do not belong here, leftovers, what is in quarantine
    metadata  group 0: superblock, snapshots, journal, and the names of topics
    shards    the same, then carry files, segments, rows and cursors
    deep      every byte of carry files and segments, if asked for

A process may hold the directory and go on working. What moves meanwhile is looked at again, and
counts as damage only if it is found each time.
"""

import time
from collections.abc import Callable
from dataclasses import replace

import msgspec

from headrace.doctor.findings.copy_findings import judged
from headrace.doctor.findings.finding import Finding, Severity
from headrace.doctor.findings.layout import strangers
from headrace.doctor.findings.log_findings import (
    LogSight,
    doubt_of,
    is_held,
    is_refused,
    log_findings,
    newest_snapshot,
)
from headrace.doctor.findings.names import Names
from headrace.doctor.findings.ownership import Who, who_is
from headrace.doctor.look.deep_check import CarryTask, State, Task, check_all, size_of
from headrace.doctor.look.entries import Entries
from headrace.doctor.look.group_look import GroupSight, look_at_group
from headrace.doctor.look.readonly import ReadonlyDirectory
from headrace.doctor.look.replay import MetadataReplayed, replay_metadata
from headrace.doctor.look.segments import SegmentTask
from headrace.doctor.look.shard_look import ShardSight, look_at_shard, placed
from headrace.errors import HeadraceError, MissingFile
from headrace.journal.entry import root as root_of
from headrace.journal.snapshot import Snapshot
from headrace.metadata.machine import MetadataMachine
from headrace.model.ids import GroupId, Op
from headrace.model.namespace import NamespaceLayout
from headrace.node.identity import GROUPS, METADATA, group_name
from headrace.partition.checkpoint_files import info_of
from headrace.partition.segments.segment import Digests

LOOK_COUNT_MAX = 3  # at a directory that is held; what is found each time is no mere movement
_PAUSE_S = 0.3  # between two looks: longer than a file is under two names

Tell = Callable[[str, int, int], None]  # what is done, how much of it, of how much


def say_nothing(stage: str, done: int, total: int) -> None:
    """Hear of progress, and do nothing."""


class GroupSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One group. Group 0 is the metadata; the others carry partitions."""

    group: int
    head: int
    snapshot_op: int
    journal_files: int
    partitions: int = 0
    rows: int = 0
    segments: int = 0
    carry_files: int = 0
    start: str  # what a start would do


class Examination(msgspec.Struct, frozen=True, kw_only=True):
    """What the doctor found. Without --deep, rows in `unread_files` were not looked at."""

    path: str
    cluster: str
    held: bool
    holder_pid: int | None
    deep: bool
    damage_count: int = msgspec.field(name="damage")
    note_count: int = msgspec.field(name="notes")
    findings: list[Finding]
    groups: list[GroupSummary]
    checked_bytes: int
    unread_files: int
    seconds: float

    @property
    def damage(self) -> list[Finding]:
        return [one for one in self.findings if one.severity is Severity.DAMAGE]

    @property
    def notes(self) -> list[Finding]:
        return [one for one in self.findings if one.severity is Severity.NOTE]


def examine(path: str, *, deep: bool = False, tell: Tell = say_nothing) -> Examination | None:
    """Look at the log in `path`, None if no log was ever made there. Only a path raises."""
    started = time.monotonic()
    found = _look(path, deep, tell)
    looks = 1
    while found is not None and found.held and found.damage and looks < LOOK_COUNT_MAX:
        time.sleep(_PAUSE_S)
        found, looks = _again(found, _look(path, deep, tell)), looks + 1
    if found is None:
        return None
    return msgspec.structs.replace(
        found,
        damage_count=len(found.damage),
        note_count=len(found.notes),
        seconds=round(time.monotonic() - started, 3),
    )


def _again(before: Examination, found: Examination | None) -> Examination | None:
    """Keep of another look what no movement explains: damage that was there before."""
    known = {one.key for one in before.damage}
    return found and msgspec.structs.replace(
        found,
        findings=[
            one
            for one in found.findings
            if one.severity is not Severity.DAMAGE or one.key in known
        ],
    )


def _look(path: str, deep: bool, tell: Tell) -> Examination | None:
    root = ReadonlyDirectory.of(path)
    who = who_is(root)
    if who.cluster is None:
        return None
    log = look_at_log(root, who, tell)
    try:
        findings = [*who.findings, *strangers(root, [METADATA, *who.cluster.shards])]
        states, checked = _deep(log, tell) if deep else ({}, 0)
        findings += log_findings(log, states)
        groups = [_summary(log, log.metadata_group, newest_snapshot(log.metadata_group))]
        groups += [_shard_summary(log, shard) for shard in log.shards.values()]
    finally:
        log.close()
    unread = 0 if deep else sum(one.segments + one.carry_files for one in groups)
    return Examination(
        path=path,
        cluster=who.cluster.identity.cluster.hex(),
        held=who.holder.is_held,
        holder_pid=who.holder.pid if who.holder.is_held else None,
        deep=deep,
        damage_count=0,
        note_count=0,
        findings=findings,
        groups=groups,
        checked_bytes=checked,
        unread_files=unread,
        seconds=0.0,
    )


def look_at_log(root: ReadonlyDirectory, who: Who, tell: Tell) -> LogSight:
    """Bring all groups of a log into memory."""
    assert who.cluster is not None
    home = root.within(GROUPS)
    found = _with_metadata(root, who)
    total = who.cluster.shard_count + 1
    for number in who.cluster.shards:
        tell("reading journals", number, total)
        room = home.within(group_name(number))
        head = who.heads.heads.get(number)
        own = look_at_group(room, who.cluster.of(number), who.config.journal.slots, head)
        found.shards[number] = look_at_shard(own, found.names.metadata)
    if who.holder.is_held and doubt_of(found):  # it moved while the shards were looked at
        found.metadata_group.close()
        found = replace(_with_metadata(root, who), shards=found.shards)
    tell("reading journals", total, total)
    return _with_copy(found)


def _with_copy(log: LogSight) -> LogSight:
    """Judge group 0 by its copy, and take metadata from there where that has more."""
    who = log.who
    follows = {
        number: None
        if shard.replayed is None or shard.group.plan is None
        else shard.replayed.machine.state.revision
        for number, shard in log.shards.items()
    }
    slots, head = who.config.journal.metadata_slots, who.heads.heads.get(METADATA)
    log.judged = judged(who.copy, log.metadata_group, slots, head, follows)
    if log.judged is not None and log.judged.metadata is not None:
        log.metadata = log.judged.metadata
        log.names = Names(log.names.layout, log.metadata.machine.state)
    return log


def _with_metadata(root: ReadonlyDirectory, who: Who) -> LogSight:
    assert who.cluster is not None
    identity = who.cluster.identity
    room = root.within(GROUPS).within(group_name(METADATA))
    head = who.heads.heads.get(METADATA)
    group = look_at_group(room, identity, who.config.journal.metadata_slots, head)
    metadata = _replayed_metadata(group)
    state = metadata.machine.state if metadata is not None else None
    highest = max((one.shard for one in state.topics.values()), default=0) if state else 0
    who.require_shards(highest, f"the metadata has a topic in shard {highest}")
    return LogSight(
        root, who, group, metadata, Names(NamespaceLayout(*identity.namespace_bits), state)
    )


def _replayed_metadata(group: GroupSight) -> MetadataReplayed | None:
    """Bring streams and topics back; None if no state is left to begin from."""
    machine = MetadataMachine(NamespaceLayout(*group.identity.namespace_bits))
    entries = Entries.of(group.scan, None, group.identity)
    files = group.scan.files
    bases: list[Snapshot | None] = list(group.snapshots)
    if files and files[0].candidate.header.first_op == 1:
        bases.append(None)
    for snapshot in bases:
        tip = root_of(group.identity) if snapshot is None else snapshot.tip
        try:
            return replay_metadata(machine, entries, snapshot, tip)
        except HeadraceError:
            continue  # whole, and yet no state of metadata; `refused` says so
    return None


def _deep(log: LogSight, tell: Tell) -> tuple[dict[tuple[GroupId, str], State], int]:
    tasks: list[tuple[GroupId, Task]] = []
    for number, shard in log.shards.items():
        tasks += [(number, task) for task in segment_tasks(shard)]
        tasks += [(number, task) for task in carry_tasks(shard)]
    total = sum(size_of(task) for _, task in tasks)
    homes = {(task.directory, task.name): number for number, task in tasks}
    states = {
        (homes[task.directory, task.name], task.name): state
        for task, state in check_all([task for _, task in tasks], "checking every byte", tell)
    }
    return states, total


def segment_tasks(shard: ShardSight) -> list[SegmentTask]:
    """Return what is to be checked of a shard's segments."""
    tasks = []
    for partition in shard.partitions:
        assert shard.replayed is not None
        topic = shard.replayed.machine.state.topic_of(partition)
        schemas = {each.version: each.schema for each in topic.schemas}
        for segment in partition.segments:
            place = placed(segment)
            if place is not None:
                info = info_of(segment, shard.group.identity)
                digests = Digests(place.rows, place.file, place.size)
                schema = schemas[segment.version]
                task = SegmentTask(shard.segments.path, info.name, info, digests, schema)
                tasks.append(task)
    return tasks


def carry_tasks(shard: ShardSight) -> list[CarryTask]:
    """Return what is to be checked of a shard's carry files."""
    identity = shard.group.identity
    return [
        CarryTask(shard.carry.path, name, identity, carry.op)
        for name, carry in shard.entries.carries.items()
    ]


def _start(log: LogSight, group: GroupSight) -> str:
    is_metadata = group.identity.group == METADATA
    if is_metadata and log.judged is not None and log.judged.is_healed:
        return "heals it from the copy of metadata"
    said = "holds it, read-only" if is_metadata and is_held(log) else "refuses"
    if group.is_empty:
        is_gone = is_refused(log, group)
        return f"{said}: {MissingFile.__name__}" if is_gone else "makes a new group"
    if group.refusal is not None:
        return f"{said}: {type(group.refusal).__name__}"
    if is_metadata and is_held(log):
        return f"{said}: it and its copy do not agree"
    assert group.plan is not None
    count = group.plan.replay_to - group.plan.base
    stop = "a clean stop" if group.survey.is_clean else "an unclean stop"
    return f"replays {count:,} ops after {stop}"


def _summary(log: LogSight, group: GroupSight, snapshot_op: Op, **figures: int) -> GroupSummary:
    return GroupSummary(
        group=group.identity.group,
        head=group.scan.head,
        snapshot_op=snapshot_op,
        journal_files=len(group.scan.files),
        start=_start(log, group),
        **figures,
    )


def _shard_summary(log: LogSight, shard: ShardSight) -> GroupSummary:
    partitions = shard.partitions
    return _summary(
        log,
        shard.group,
        shard.snapshot_op,
        partitions=len(partitions),
        rows=sum(one.end - one.first for one in partitions),
        segments=sum(len(one.segments) for one in partitions),
        carry_files=len(shard.entries.carries),
    )
