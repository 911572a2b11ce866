"""A node's metrics: all names and meanings in one table, and their rendering in a scrape.

Nothing is counted here: the counters of the node, its machines and its listeners are read on
each scrape.
"""

from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from itertools import accumulate
from typing import Final

from prometheus_client import generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from headrace.node.counters import Distribution

CONTENT_TYPE: Final = CONTENT_TYPE_LATEST
LABEL_VALUES_MAX: Final = 64  # per counter; further values are counted as OTHER
LABEL_SIZE_MAX: Final = 100  # characters
OTHER: Final = "other"

# By name: a number; for a counter with a label, a number for each of the label's values.
Reading = float | Mapping[str, float] | Distribution
Readings = Mapping[str, Reading]


class Counter(StrEnum):
    """Values that only rise while a node runs. The third column is the label, if any."""

    meaning: str
    label: str

    def __new__(cls, name: str, meaning: str, label: str = "") -> "Counter":
        member = str.__new__(cls, name)
        member._value_ = name
        member.meaning = meaning
        member.label = label
        return member

    APPENDS = "headrace_appends_total", "Acknowledged appends."
    APPEND_ROWS = "headrace_append_rows_total", "Rows of acknowledged appends."
    APPEND_BYTES = "headrace_append_bytes_total", "Body bytes of acknowledged appends."
    FETCHES = "headrace_fetches_total", "Fetches answered, with or without rows."
    FETCH_BYTES = "headrace_fetch_bytes_total", "Body bytes of fetch responses."
    FAILURES = "headrace_failures_total", "Requests that failed.", "code"
    PASSES = (
        "headrace_reconcile_passes_total",
        "Reconciler passes that compared metadata and partitions.",
    )
    SKIPS = "headrace_reconcile_skips_total", "Reconciler passes that had nothing to compare."
    BUILDS = "headrace_reconcile_builds_total", "Partitions created on this node."
    REMOVALS = "headrace_reconcile_removals_total", "Partitions removed from this node."
    RECONCILE_FAILURES = (
        "headrace_reconcile_failures_total",
        "Partition builds and removals that failed and will be retried.",
        "cause",
    )
    PARKED = "headrace_parked_total", "Requests that waited for their partition to be created."
    CONNECTIONS = "headrace_connections_total", "Connections accepted."
    CUT_OFFS = "headrace_cut_off_connections_total", "Connections cut off.", "reason"


class Gauge(StrEnum):
    """Current values at the time of a scrape."""

    meaning: str

    def __new__(cls, name: str, meaning: str) -> "Gauge":
        member = str.__new__(cls, name)
        member._value_ = name
        member.meaning = meaning
        return member

    READY = "headrace_ready", "1 if the node serves, 0 if not."
    DEGRADED = (
        "headrace_degraded",
        "Places where rows or topics are missing: unreadable files, cursors beyond an end, "
        "reasons for metadata doubt.",
    )
    ORPHANS = (
        "headrace_orphans",
        "Partitions that a shard has but the metadata has lost; never removed automatically.",
    )
    HEADS_FAILURES = (
        "headrace_heads_failures",
        "Consecutive failed writes of the heads file: 0 while it protects the ends of "
        "journals.",
    )
    JOURNAL_BYTES = "headrace_journal_bytes", "Bytes of all journal files, including spares."
    SEGMENT_BYTES = "headrace_segment_bytes", "Bytes of segments and carry files."
    DISK_FREE_BYTES = (
        "headrace_disk_free_bytes",
        "Free bytes on the file system of the data directory.",
    )
    FREE_SLOTS = "headrace_journal_free_slots", "Free slots of the fullest group's ring."
    PENDING_CHECKPOINTS = "headrace_pending_checkpoints", "Checkpoints waiting to be written."
    UNSEALED_BYTES = "headrace_unsealed_bytes", "Body bytes appended since the last seals."
    PARTITIONS = "headrace_partitions", "Partitions on this node."
    IN_FLIGHT = "headrace_in_flight_requests", "Requests in flight."
    IN_FLIGHT_BYTES = "headrace_in_flight_bytes", "Body bytes of requests in flight."
    OPEN_CONNECTIONS = "headrace_open_connections", "Open connections."


class Histogram(StrEnum):
    """Distributions of values."""

    meaning: str

    def __new__(cls, name: str, meaning: str) -> "Histogram":
        member = str.__new__(cls, name)
        member._value_ = name
        member.meaning = meaning
        return member

    APPEND_SECONDS = "headrace_append_seconds", "Seconds from an append to its acknowledgement."
    FETCH_SECONDS = "headrace_fetch_seconds", "Seconds from a fetch to its response."
    COMMIT_GROUP_OPS = "headrace_commit_group_ops", "Ops per sync."


class Metrics(Collector):
    """The metrics of one node."""

    def __init__(self, read: Callable[[], Readings]) -> None:
        """`read` is called once per scrape, and returns only metrics of the table."""
        self._read = read

    def render(self) -> bytes:
        """Return everything as Prometheus reads it; see CONTENT_TYPE."""
        return generate_latest(self)

    def collect(self) -> Iterator[Metric]:
        """Yield all readings; counters without one as 0."""
        readings = dict(self._read())
        for counter in Counter:
            yield _counter_family(counter, readings.pop(counter, 0))
        for gauge in Gauge:
            if gauge in readings:
                value = readings.pop(gauge)
                assert isinstance(value, int | float)
                yield GaugeMetricFamily(gauge.value, gauge.meaning, value=value)
        for histogram in Histogram:
            if histogram in readings:
                found = readings.pop(histogram)
                assert isinstance(found, Distribution)
                yield _histogram_family(histogram, found)
        assert not readings  # every reading is in the table


def _counter_family(counter: Counter, reading: Reading) -> CounterMetricFamily:
    total: dict[str, float] = {}
    if isinstance(reading, Mapping):
        assert counter.label
        for value, number in reading.items():
            _add(total, value, number)
    else:
        assert isinstance(reading, int | float)
        assert reading == 0 or not counter.label  # a labelled counter is read by label
        if not counter.label:
            total[""] = reading
    labels = [counter.label] if counter.label else []
    family = CounterMetricFamily(counter.value, counter.meaning, labels=labels)
    for value, number in sorted(total.items()):
        family.add_metric([value] if labels else [], number)
    return family


def _histogram_family(histogram: Histogram, found: Distribution) -> HistogramMetricFamily:
    bounds = [*map(floatToGoString, found.bounds), "+Inf"]
    buckets = list(zip(bounds, accumulate(found.counts), strict=True))
    return HistogramMetricFamily(
        histogram.value, histogram.meaning, buckets=buckets, sum_value=found.total
    )


def _add(counts: dict[str, float], label: str, amount: float) -> None:
    """Add to the count of one label value, within the limit on label values."""
    value = label[:LABEL_SIZE_MAX].encode(errors="replace").decode()
    if value not in counts and len(counts) >= LABEL_VALUES_MAX:
        value = OTHER
    counts[value] = counts.get(value, 0) + amount
