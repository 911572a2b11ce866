"""Builds one picture from a node's answers, and rates from two pictures."""

from collections.abc import Iterator
from typing import Any

import msgspec

import headrace
from headrace.cli.status.status_figures import (
    CheckpointFigures,
    DiskFigures,
    LagFigures,
    NodeFigures,
    OrphanFigures,
    Picture,
    Rates,
    ReconcilerFigures,
    TopicFigures,
    WorkFigures,
)
from headrace.errors import BadFrame, MetadataInDoubt, TopicUnknown, Unavailable


class _Journal(msgspec.Struct, frozen=True):
    size: int = 0
    slots: int = 0
    free_slots: int = 0


class _Checkpoints(msgspec.Struct, frozen=True):
    at: str | None = None
    pending: int = 0
    waiting: int = 0
    unsealed_bytes: int = 0


class _Segments(msgspec.Struct, frozen=True):
    size: int = 0


class _Group(msgspec.Struct, frozen=True):
    refused: str | None = None
    held: str | None = None  # its remains can be read, but nothing is written
    halted: str | None = None
    checkpoint: str | None = None  # why the newest one failed
    findings: tuple[str, ...] = ()
    journal: _Journal = _Journal()
    checkpoints: _Checkpoints = _Checkpoints()
    segments: _Segments = _Segments()
    reconciler: ReconcilerFigures = ReconcilerFigures()


class _Copy(msgspec.Struct, frozen=True):
    """Outcome of the copy of metadata."""

    healed: str | None = None
    held: tuple[str, ...] = ()
    failure: str | None = None


class _Heads(msgspec.Struct, frozen=True):
    """Outcome of the file of heads."""

    flaws: tuple[str, ...] = ()
    failure: str | None = None


class _Disk(msgspec.Struct, frozen=True):
    free: int | None = None
    total: int | None = None


class _Status(msgspec.Struct, frozen=True):
    """A node's status. An older node reports less: what it omits is 0 or None."""

    ready: bool = False
    path: str = ""
    release: str = ""
    cluster: str = ""
    started_at: str = ""
    uptime_seconds: float = 0.0
    disk: _Disk = _Disk()
    work: WorkFigures = WorkFigures()
    steps: dict[str, str] = msgspec.field(default_factory=dict)
    groups: dict[str, _Group] = msgspec.field(default_factory=dict)
    heads: _Heads = _Heads()
    metadata_copy: _Copy = _Copy()
    diverged: tuple[str, ...] = ()
    # Those of findings and diverged where rows are missing, and why the metadata is in doubt.
    degraded: tuple[str, ...] = ()
    way_out: str = ""  # how to resolve the doubt
    orphans: tuple[OrphanFigures, ...] = ()
    orphan_count: int = 0


def look(log: headrace.Log, *, served: bool = True) -> Picture:
    """Query a node for everything once. `served`: it runs in its own process."""
    status = _status(log.status())
    topics: list[TopicFigures] = []
    lags: list[LagFigures] = []
    reasons = list(_reasons(status))
    try:
        for name in log.topics():
            _look_at(log, name, topics, lags)
    except (Unavailable, MetadataInDoubt) as error:  # the other topics are shown
        reasons.append(f"not all topics can be shown: {error}")
    return Picture(
        node=NodeFigures(
            address=log.address,
            release=status.release,
            path=status.path,
            cluster=status.cluster,
            served=served,
            ready=status.ready,
            degraded=bool(status.degraded),
            reasons=tuple(reasons),
            next_step=_next_step(status),
            orphans=status.orphans,
            orphan_count=status.orphan_count,
            started_at=status.started_at,
            uptime_seconds=status.uptime_seconds,
        ),
        work=status.work,
        topics=tuple(topics),
        lags=tuple(sorted(lags, key=lambda each: (-each.lag, each.group, each.topic))),
        disk=_disk(status),
        checkpoints=_checkpoints(status),
        reconciler=_reconciler(status),
    )


def with_rates(picture: Picture, before: Picture) -> Picture:
    """Add rates per second since `before`; none if the node was restarted since."""
    seconds = picture.node.uptime_seconds - before.node.uptime_seconds
    if picture.node.started_at != before.node.started_at or seconds <= 0:
        return picture
    now, then = picture.work, before.work
    rates = Rates(
        appended_rows=(now.appended_rows - then.appended_rows) / seconds,
        appended_bytes=(now.appended_bytes - then.appended_bytes) / seconds,
        fetched_bytes=(now.fetched_bytes - then.fetched_bytes) / seconds,
    )
    ends = {each.topic: each.end for each in before.topics}
    topics = tuple(
        msgspec.structs.replace(
            each, rows_per_second=max(0, each.end - ends.get(each.topic, each.end)) / seconds
        )
        for each in picture.topics
    )
    return msgspec.structs.replace(picture, rates=rates, topics=topics)


def _status(found: dict[str, Any]) -> _Status:
    try:
        return msgspec.convert(found, _Status)
    except msgspec.ValidationError as error:
        raise BadFrame(f"the node's status cannot be read: {error}") from error


def _look_at(
    log: headrace.Log, name: str, topics: list[TopicFigures], lags: list[LagFigures]
) -> None:
    try:
        topic = log.topic(name)
        bounds, cursors = topic.bounds(), topic.cursors()
    except TopicUnknown:  # deleted meanwhile
        return
    topics.append(
        TopicFigures(
            topic=name,
            partitions=len(bounds),
            rows=sum(each.row_count for each in bounds),
            size=sum(each.size for each in bounds),
            end=sum(each.end for each in bounds),
        )
    )
    for group in sorted({each.group for each in cursors}):
        own = [each for each in cursors if each.group == group]
        lags.append(
            LagFigures(
                group=group,
                topic=name,
                lag=sum(each.lag for each in own),
                partitions=len(own),
                holds=any(each.hold for each in own),
            )
        )


def _reasons(status: _Status) -> Iterator[str]:
    """Yield everything that is wrong, most severe first."""
    for number, group in status.groups.items():
        if group.refused:
            yield f"group {number} refuses to start: {group.refused}"
        if group.halted:
            yield f"group {number} halted: {group.halted}"
    for number, group in status.groups.items():
        if group.checkpoint:
            yield f"group {number} cannot write its checkpoint: {group.checkpoint}"
        yield from group.findings
    if status.heads.failure:
        yield (
            f"heads cannot be written, so damage at the end of a journal may look like an "
            f"unfinished append: {status.heads.failure}"
        )
    yield from (f"heads: {flaw}" for flaw in status.heads.flaws)
    yield from (f"group 0 is not healed: {each}" for each in status.metadata_copy.held)
    if status.metadata_copy.healed:
        yield f"group 0 was {status.metadata_copy.healed}"
    if status.metadata_copy.failure:
        yield f"the copy of metadata cannot be written: {status.metadata_copy.failure}"
    yield from status.diverged
    told = {said for group in status.groups.values() for said in group.findings}
    yield from (each for each in status.degraded if each not in told.union(status.diverged))
    if not status.ready and not status.groups:
        yield "it is still starting: " + ", ".join(status.steps)


def _next_step(status: _Status) -> str:
    if status.way_out or not status.degraded:
        return status.way_out
    return f"`headrace doctor {status.path} --deep` lists what is damaged and what to do"


def _disk(status: _Status) -> DiskFigures:
    groups = list(status.groups.values())
    journal = sum(each.journal.size for each in groups)
    segments = sum(each.segments.size for each in groups)
    rings = [each.journal for each in groups if each.journal.slots]
    fullest = min(rings, key=lambda ring: ring.free_slots / ring.slots, default=_Journal())
    return DiskFigures(
        used=journal + segments,
        free=status.disk.free,
        total=status.disk.total,
        journal=journal,
        segments=segments,
        slots=fullest.slots,
        free_slots=fullest.free_slots,
    )


def _checkpoints(status: _Status) -> CheckpointFigures:
    groups = [(each.checkpoints, each.checkpoint) for each in status.groups.values()]
    return CheckpointFigures(
        last_at=max((each.at for each, _ in groups if each.at), default=None),
        pending=sum(each.pending for each, _ in groups),
        waiting=sum(each.waiting for each, _ in groups),
        unsealed_bytes=sum(each.unsealed_bytes for each, _ in groups),
        failure=next((failure for _, failure in groups if failure), None),
    )


def _reconciler(status: _Status) -> ReconcilerFigures:
    all_of = [each.reconciler for each in status.groups.values()]
    failures: dict[str, int] = {}
    for each in all_of:
        for cause, count in each.failures.items():
            failures[cause] = failures.get(cause, 0) + count
    return ReconcilerFigures(
        passes=sum(each.passes for each in all_of),
        builds=sum(each.builds for each in all_of),
        removals=sum(each.removals for each in all_of),
        failures=failures,
        removing=sum(each.removing for each in all_of),
        parked=sum(each.parked for each in all_of),
    )
