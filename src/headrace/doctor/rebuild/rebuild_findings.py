"""Losses and notes about shards that were rebuilt without a snapshot."""

from collections.abc import Iterator

from headrace.doctor.findings.finding import count, ops
from headrace.doctor.findings.names import Names
from headrace.doctor.look.shard_look import Rebuilt, ShardSight
from headrace.model.namespace import Namespace
from headrace.partition.shard_store import CARRY

_SHOWN_MAX = 8  # partitions or ops in one sentence


def rebuilt_losses(where: str, shard: ShardSight, names: Names) -> Iterator[str]:
    """Report what may be acknowledged but was not copied, and cannot be named as rows."""
    told = shard.rebuilt
    if told is None:
        return
    if told.unreadable:
        some = _some([ops(op) for op in told.unreadable])
        yield f"{where}/{CARRY}, {some}: contents unknown"
    for topic, row_count in sorted(told.undecided.items()):
        name = _topic(names, shard, topic)
        rows = count(row_count, "row")
        yield (
            f"{where}: {rows} staged in transactions on {name}: left out, because it is "
            "unknown whether they were published"
        )
    if told.placeless_count:
        rows = count(told.placeless_count, "row")
        yield f"{where}: {rows} that can be read, but whose place or schema is unknown"


def rebuilt_words(where: str, shard: ShardSight, names: Names) -> Iterator[str]:
    """Report what a person should know about a rebuilt state."""
    told = shard.rebuilt
    if told is None:
        return
    since = f"before op {told.base + 1:,}" if shard.entries.journal else "here"
    files = "segments, carry files and the journal"
    if not shard.entries.journal:
        files = "segments and carry files only"
    yield (
        f"no snapshot of {where} is left: its rows were rebuilt from {files}; cursors stored "
        f"{since} are lost, and rows that were trimmed, or purged {since}, may be back"
    )
    if told.below:
        below = _below(told, shard, names)
        yield f"in {where}, it is unclear whether rows were trimmed or lost below {below}"
    yield from _cursors(where, told, shard)
    if told.untimed_count:
        rows = count(told.untimed_count, "row")
        yield (
            f"in {where}, {rows} of transactions published {since} have their staging time, "
            "and the earliest position at which they can have been published"
        )
    if told.writer_count:
        writers = count(told.writer_count, "writer")
        yield (
            f"in {where}, {writers} continued after op {told.base:,}; an append that one of "
            "them repeated, and whose first copy is in a segment, appears twice"
        )


def _cursors(where: str, told: Rebuilt, shard: ShardSight) -> Iterator[str]:
    """Report copied cursors that may be wrong, and cursors that were left out."""
    unsure = sorted(
        {
            group
            for partition in shard.partitions
            for group, cursor in partition.cursors.items()
            for doubt in told.doubts.get(partition.namespace, [])
            if doubt.end is None and cursor.next > doubt.start
        }
    )
    if unsure:
        yield (
            f"in {where}, the cursors of these consumer groups may be ahead of what was read, "
            f"because old offsets may have been higher: {_some(unsure)}"
        )
    beyond = sorted({group for _, group in told.beyond})
    if beyond:
        yield (
            f"in {where}, cursors beyond the known rows are left out, of the consumer groups "
            f"{_some(beyond)}"
        )


def _below(told: Rebuilt, shard: ShardSight, names: Names) -> str:
    assert shard.replayed is not None
    found = []
    for namespace, offset in sorted(told.below.items()):
        partition = shard.replayed.machine.state.partitions[Namespace(namespace)]
        rows = names.rows(partition, offset, offset)
        found.append(f"row {offset:,} of {rows.topic} partition {rows.partition}")
    return _some(found)


def _topic(names: Names, shard: ShardSight, number: int) -> str:
    assert shard.replayed is not None
    state = shard.replayed.machine.state
    topic = state.topics.get(number)
    if topic is None or not topic.members:
        return f"topic {number}"
    return names.name(topic.members[0], topic.created)


def _some(found: list[str]) -> str:
    shown = ", ".join(found[:_SHOWN_MAX])
    return shown if len(found) <= _SHOWN_MAX else f"{shown} and {len(found) - _SHOWN_MAX} more"
