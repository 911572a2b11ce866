"""What is to be said of shards that were rebuilt without a snapshot."""

from collections.abc import Iterator

from headrace.doctor.findings.finding import count, ops
from headrace.doctor.findings.names import Names
from headrace.doctor.look.shard_look import Rebuilt, ShardSight
from headrace.model.namespace import Namespace
from headrace.partition.shard_store import CARRY

_SHOWN_MAX = 8  # partitions or ops in one sentence


def rebuilt_losses(where: str, shard: ShardSight, names: Names) -> Iterator[str]:
    """Say what may be acknowledged and did not come over, and cannot be named as rows."""
    told = shard.rebuilt
    if told is None:
        return
    if told.unreadable:
        some = _some([ops(op) for op in told.unreadable])
        yield f"{where}/{CARRY}, {some}: what was there is not known"
    for topic, row_count in sorted(told.undecided.items()):
        name = _topic(names, shard, topic)
        rows = count(row_count, "row")
        yield (
            f"{where}: {rows} staged in transactions on {name}: nothing tells whether they "
            "were published, and they are left out"
        )
    if told.placeless_count:
        rows = count(told.placeless_count, "row")
        yield f"{where}: {rows} that can be read, and whose place or schema nothing tells"


def rebuilt_words(where: str, shard: ShardSight, names: Names) -> Iterator[str]:
    """Say what a person should know of a state that was put together."""
    told = shard.rebuilt
    if told is None:
        return
    since = f"before op {told.base + 1:,}" if shard.entries.journal else "here"
    files = "segments, carry files and the journal"
    if not shard.entries.journal:
        files = "segments and carry files alone"
    yield (
        f"no snapshot of {where} is left: its rows were put together from {files}; cursors "
        f"that were stored {since} are lost, and rows that were trimmed, or purged {since}, "
        "may be back"
    )
    if told.below:
        below = _below(told, shard, names)
        yield f"in {where} nothing tells whether rows were trimmed or lost below {below}"
    yield from _cursors(where, told, shard)
    if told.untimed_count:
        rows = count(told.untimed_count, "row")
        yield (
            f"in {where}, {rows} of transactions that were published {since} have the time of "
            "their staging, and stand where they were published at the earliest"
        )
    if told.writer_count:
        writers = count(told.writer_count, "writer")
        yield (
            f"in {where}, {writers} went on after op {told.base:,}; an append that one of them "
            "sent again, and whose first copy is in a segment, is there twice"
        )


def _cursors(where: str, told: Rebuilt, shard: ShardSight) -> Iterator[str]:
    """Say which cursors came over and may be wrong, and which did not."""
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
            f"in {where}, a cursor may be ahead of what its consumer group has read, where old "
            f"offsets may have been higher: {_some(unsure)}"
        )
    beyond = sorted({group for _, group in told.beyond})
    if beyond:
        yield (
            f"in {where}, cursors beyond the rows that are known are left out, of the consumer "
            f"groups {_some(beyond)}"
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
