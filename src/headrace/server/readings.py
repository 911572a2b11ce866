"""The readings of a node for a scrape."""

from headrace.node.bootstrap import Boot
from headrace.node.counters import NodeCounters
from headrace.node.node_status import disk_space, journal_size, segments_size
from headrace.node.ready_state import degraded, doubt_of
from headrace.server.connections.traffic import Traffic
from headrace.server.metrics import Counter, Gauge, Histogram, Readings


def readings(boot: Boot, traffic: Traffic) -> Readings:
    """Return the current value of every metric."""
    node = boot.node
    running = [] if node is None else list(node.shards.values())
    doubt = doubt_of(boot)
    groups = [one.shard.store.group for one in running]
    if boot.metadata_group is not None:
        groups.append(boot.metadata_group)
    counters = [one.shard.reconciler.counters for one in running]
    causes: dict[str, float] = {}
    for each in counters:
        for cause, count in each.failures.items():
            causes[cause] = causes.get(cause, 0) + count
    journals = [group.journal for group in groups]
    work = NodeCounters() if node is None else node.calls.counters
    return {
        Counter.APPENDS: work.appends,
        Counter.APPEND_ROWS: work.appended_rows,
        Counter.APPEND_BYTES: work.appended_bytes,
        Counter.FETCHES: work.fetches,
        Counter.FETCH_BYTES: work.fetched_bytes,
        Counter.FAILURES: dict(work.failures),
        Counter.PASSES: sum(each.pass_count for each in counters),
        Counter.SKIPS: sum(each.skip_count for each in counters),
        Counter.BUILDS: sum(each.build_count for each in counters),
        Counter.REMOVALS: sum(each.removal_count for each in counters),
        Counter.RECONCILE_FAILURES: causes,
        Counter.PARKED: sum(one.shard.parking.parked_count for one in running),
        Counter.CONNECTIONS: traffic.connections_total,
        Counter.CUT_OFFS: dict(traffic.cut_offs),
        Gauge.READY: int(boot.is_ready),
        Gauge.DEGRADED: len(degraded(boot)),
        Gauge.ORPHANS: len(doubt.orphans) if doubt is not None else 0,
        Gauge.HEADS_FAILURES: 0 if boot.heads is None else boot.heads.failure_count,
        Gauge.JOURNAL_BYTES: sum(map(journal_size, groups)),
        Gauge.SEGMENT_BYTES: sum(segments_size(one.shard.store) for one in running),
        **_disk(boot.path),
        Gauge.FREE_SLOTS: min((journal.free_slots for journal in journals), default=0),
        Gauge.PENDING_CHECKPOINTS: sum(len(group.checkpoints.pending) for group in groups),
        Gauge.UNSEALED_BYTES: sum(one.driver.pump.pace.size for one in running),
        Gauge.PARTITIONS: sum(len(one.shard.state.partitions) for one in running),
        Gauge.IN_FLIGHT: traffic.in_flight,
        Gauge.IN_FLIGHT_BYTES: traffic.in_flight_size,
        Gauge.OPEN_CONNECTIONS: traffic.connections_open,
        Histogram.APPEND_SECONDS: work.append_seconds,
        Histogram.FETCH_SECONDS: work.fetch_seconds,
        Histogram.COMMIT_GROUP_OPS: work.group_ops,
    }


def _disk(path: str) -> dict[str, float]:
    """Return the free disk space; nothing if unknown."""
    space = disk_space(path)
    return {} if space is None else {Gauge.DISK_FREE_BYTES: space.free}
