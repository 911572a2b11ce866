"""Findings about a whole log: its metadata, then its shards."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from headrace.doctor.anatomy.file_anatomy import time_text
from headrace.doctor.findings.copy_findings import (
    IN_COPY,
    METADATA_PATH,
    Judged,
    copy_findings,
    healed,
    held,
)
from headrace.doctor.findings.finding import (
    Finding,
    Loss,
    Severity,
    count,
    in_words,
    joined,
    ops,
)
from headrace.doctor.findings.group_findings import GroupWords
from headrace.doctor.findings.names import Names
from headrace.doctor.findings.ownership import Who
from headrace.doctor.findings.shard_findings import ShardWords
from headrace.doctor.findings.words import apply_failed, finding
from headrace.doctor.look.deep_check import CarryState, State
from headrace.doctor.look.group_look import GroupSight
from headrace.doctor.look.readonly import ReadonlyDirectory
from headrace.doctor.look.replay import MetadataReplayed
from headrace.doctor.look.segments import SegmentState
from headrace.doctor.look.shard_look import ShardSight
from headrace.journal.heads import NAME as HEADS_NAME
from headrace.model.ids import GroupId, Op
from headrace.model.revisions import shown
from headrace.node.doubt.doubt import Doubt, Orphan, judge
from headrace.node.doubt.metadata_start import is_holdable
from headrace.node.identity import GROUPS, METADATA, group_name
from headrace.node.identity import NAME as CLUSTER_NAME
from headrace.node.node_status import schema_lines

_MANY = 3  # from this many on, foreign files of one origin are one finding

States = Mapping[tuple[GroupId, str], State]  # of a deep look


@dataclass(slots=True)
class LogSight:
    """Everything known about a log, in memory. Close it."""

    root: ReadonlyDirectory
    who: Who
    metadata_group: GroupSight
    metadata: MetadataReplayed | None
    names: Names
    shards: dict[GroupId, ShardSight] = field(default_factory=dict)
    judged: Judged | None = None  # group 0 and its copy, as a start would; None: no copy

    @property
    def is_in_copy(self) -> bool:
        """Whether the metadata comes from the copy, which has more than group 0."""
        return self.judged is not None and self.judged.metadata is not None

    def close(self) -> None:
        self.metadata_group.close()
        for shard in self.shards.values():
            shard.close()


def log_findings(log: LogSight, states: States) -> list[Finding]:
    """Return the findings about all groups of a log."""
    found = _group_findings(log, states)
    barred = _barred(log.root)
    told = [one for one in found if not any(_is_in(one.file, path) for path in barred)]
    lost = Loss("unknown: nothing in it could be read", is_counted=False)
    unlistable = [
        finding("unlistable", path, loss=lost, what=why) for path, why in barred.items()
    ]
    return [*unlistable, *told]


def _barred(root: ReadonlyDirectory) -> dict[str, str]:
    """Return the inaccessible paths and why, without those inside another one."""
    found: dict[str, str] = {}
    for path, why in sorted(root.barred.items()):
        name = path.removeprefix(f"{root.path}/")
        if name != CLUSTER_NAME and not any(_is_in(name, above) for above in found):
            found[name] = why
    return found


def _is_in(file: str, path: str) -> bool:
    return file == path or file.startswith(f"{path}/")


def _group_findings(log: LogSight, states: States) -> list[Finding]:
    if _are_all_gone(log):
        return [_all_gone(log)]
    found = metadata_findings(log)
    is_complete = log.metadata is not None and not any(uncounted(found))
    for number, shard in log.shards.items():
        if shard.group.is_empty:
            found += _gone_shard(log, shard, is_complete)
        else:
            own = _shard_findings(log, number, shard, states)
            found += _together(f"{GROUPS}/{group_name(number)}", own)
    return found


def _together(where: str, findings: list[Finding]) -> Iterator[Finding]:
    """Merge the findings about many files from one other place into one."""
    alike = Counter(one.what for one in findings if one.kind == "foreign-file")
    told: set[str] = set()
    for one in findings:
        if one.kind != "foreign-file" or alike[one.what] < _MANY:
            yield one
        elif one.what not in told:
            told.add(one.what)
            yield _joined(where, [each for each in findings if each.what == one.what])


def _joined(where: str, findings: list[Finding]) -> Finding:
    is_counted = all(one.is_counted for one in findings)
    rows = joined([rows for one in findings for rows in one.lost_rows])
    lost = in_words(rows) if rows else "nothing"
    if not is_counted:
        lost = "unknown, unless this group's own files are elsewhere"
    loss, what = Loss(lost, rows, is_counted), findings[0].what
    return finding("foreign-file: many", where, loss=loss, files=len(findings), what=what)


def is_refused(log: LogSight, group: GroupSight) -> bool:
    """Whether a start refuses to create this group, which has no files, again."""
    metadata = log.metadata_group
    if group.identity.group == METADATA:
        if log.judged is not None:
            return not log.judged.is_healed
        return bool(log.who.heads.heads) or not _are_all_gone(log)
    if metadata.is_empty:
        return is_refused(log, metadata)
    return metadata.refusal is not None or metadata.scan.head > 0


def _are_all_gone(log: LogSight) -> bool:
    groups = [log.metadata_group, *(shard.group for shard in log.shards.values())]
    return all(one.is_empty for one in groups)


def is_held(log: LogSight) -> bool:
    """Whether a start holds group 0: it serves what can be read and changes no topic."""
    group, judged = log.metadata_group, log.judged
    if judged is not None and judged.is_healed:
        return False
    if group.refusal is not None:
        return is_holdable(group.refusal)
    return is_refused(log, group) if group.is_empty else judged is not None and judged.is_held


def _all_gone(log: LogSight) -> Finding:
    if log.who.heads.heads:
        lost = Loss("everything", is_counted=False)
        what = f"no group has any files, but {HEADS_NAME!r} names their ops"
        return _gone(GROUPS, lost, what)
    lost = Loss("everything, if anything was ever written here, which is unknown", (), False)
    return finding("group-gone: all", GROUPS, loss=lost)


def uncounted(findings: list[Finding]) -> Iterator[str]:
    """Name the losses that cannot be counted in known rows."""
    for one in findings:
        if one.severity is Severity.DAMAGE and not one.is_counted:
            yield f"{one.where}: {one.lost}"


def metadata_findings(log: LogSight) -> list[Finding]:
    """Return the findings about group 0."""
    group = log.metadata_group
    found = [_gone_metadata(log)] if group.is_empty else _metadata_damage(log)
    found = held(found) if is_held(log) else healed(log.judged, found)
    found += copy_findings(log.judged, group)
    if group.is_empty:
        return found
    is_told = any(uncounted(found))
    return [*found, *_doubts(log, METADATA_PATH, is_told=is_told)]


def _gone_metadata(log: LogSight) -> Finding:
    lost = Loss("the list of topics: names, schemas, retention", is_counted=False)
    case = "group-gone: metadata" if is_held(log) else "group-gone"
    return _gone(METADATA_PATH, IN_COPY if log.is_in_copy else lost, case=case)


def _metadata_damage(log: LogSight) -> list[Finding]:
    group, done = log.metadata_group, log.metadata

    def loss_of(first: Op, last: Op) -> Loss:
        if log.is_in_copy:
            return IN_COPY
        if done is not None and last < done.expected:
            return Loss("nothing: the entry itself is intact, and --salvage reads it")
        behind = ", ".join(done.names_behind) if done is not None else ""
        words = f"topic changes: what {ops(first, last)} did is unknown"
        more = f"; topics created after that: {behind}" if behind else ""
        return Loss(words + more, is_counted=False)

    covered = group.plan.base if group.plan else newest_snapshot(group)
    raising = done.raising if done is not None else {}
    return [
        *GroupWords(group, METADATA_PATH, covered, loss_of).findings(),
        *(
            apply_failed(METADATA_PATH, op, what, loss_of(op, op))
            for op, what in raising.items()
        ),
    ]


def _doubts(log: LogSight, where: str, *, is_told: bool) -> Iterator[Finding]:
    """Report what shards have and the metadata lacks; the reasons only if no damage does."""
    doubt = doubt_of(log)
    if doubt is None:
        return
    named = set(map(str, doubt.orphans))
    for what in () if is_told else [each for each in doubt.reasons if each not in named]:
        lost = Loss("topic changes: names, schemas, retention", is_counted=False)
        yield finding("metadata-behind", where, loss=lost, what=what)
    for own in _of_one_topic(log, doubt.orphans):
        yield _orphan(log, own)


def _of_one_topic(log: LogSight, orphans: tuple[Orphan, ...]) -> Iterator[list[Orphan]]:
    bits = log.names.layout.partition_bits
    topics: dict[tuple[GroupId, int, int], list[Orphan]] = {}
    for one in orphans:
        key = (one.shard, one.key.namespace >> bits, one.topic_created)
        topics.setdefault(key, []).append(one)
    yield from topics.values()


def _orphan(log: LogSight, own: list[Orphan]) -> Finding:
    """Report the partitions of one topic that the metadata has lost."""
    one = own[0]
    names = [f"{each.key.namespace:x} of revision {shown(each.key.created)}" for each in own]
    phrase = "partition {} belongs" if len(own) == 1 else "partitions {} belong"
    return finding(
        "orphan",
        f"{GROUPS}/{group_name(one.shard)}",
        loss=Loss("the name, the retention and the key of a topic", is_counted=False),
        names=phrase.format(", ".join(names)),
        rows="; ".join(_rows_of(log, each) for each in own),
        schema=", ".join(schema_lines(one.schema)),
    )


def _rows_of(log: LogSight, one: Orphan) -> str:
    partition = log.names.layout.unpack(one.key.namespace).partition_id
    times = (
        ""
        if one.first_at is None or one.last_at is None
        else f", from {time_text(one.first_at)} to {time_text(one.last_at)}"
    )
    rows = count(one.row_count, "row")
    return f"partition {partition} of one with {rows}, {one.size:,} bytes{times}"


def doubt_of(log: LogSight) -> Doubt | None:
    """Return the evidence against the metadata, as far as it and its shards can be read."""
    state = log.names.metadata
    if state is None:
        return None
    shards = {
        number: shard.replayed.machine.state
        for number, shard in log.shards.items()
        if shard.replayed is not None
    }
    return judge(state, shards)


def newest_snapshot(group: GroupSight) -> Op:
    """Return the op of the newest intact snapshot, 0 if there is none."""
    return group.snapshots[0].op if group.snapshots else Op(0)


def _gone(
    where: str,
    loss: Loss,
    what: str = "the group's files are missing",
    case: str = "group-gone",
) -> Finding:
    return finding(case, where, loss=loss, what=what)


def _shard_findings(
    log: LogSight,
    number: GroupId,
    shard: ShardSight,
    states: States,
) -> list[Finding]:
    where = f"{GROUPS}/{group_name(number)}"
    own = {name: one for (group, name), one in states.items() if group == number}
    segments = {name: one for name, one in own.items() if isinstance(one, SegmentState)}
    carries = {name: one for name, one in own.items() if isinstance(one, CarryState)}
    words = ShardWords(shard, where, log.names, segments, carries)
    plan = shard.group.plan
    covered = plan.base if plan else shard.snapshot_op
    found = GroupWords(shard.group, where, covered, words.loss_of).findings()
    return [*found, *words.findings()]


def _gone_shard(log: LogSight, shard: ShardSight, is_complete: bool) -> Iterator[Finding]:
    group = shard.group
    if not is_refused(log, group):
        return  # the first start was killed: nothing was ever written
    number, state = group.identity.group, log.names.metadata
    topics = state.topics.values() if state is not None else ()
    own = sum(one.shard == number for one in topics)
    where = f"{GROUPS}/{group_name(number)}"
    if shard.segments.names() or shard.entries.carries:
        what = "only segments and carry files are left of the group's files"
        lost = "the state, and what only the journal had"
        yield _gone(where, Loss(lost, is_counted=False), what)
    elif own:
        yield _gone(where, Loss(f"every row of {count(own, 'topic')}", is_counted=False))
    elif is_complete:
        what = f"the group's files are missing, or {CLUSTER_NAME} counts one shard too many"
        yield _gone(where, Loss("nothing: no topic is in it"), what)
    else:
        yield _gone(where, Loss("unknown: no record of what was in it", is_counted=False))
