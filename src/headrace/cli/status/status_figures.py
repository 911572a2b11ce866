"""Output of `headrace status --json`, from which the view is drawn, too."""

import msgspec

from headrace.cli.terminal.output import JsonShape


class OrphanFigures(JsonShape, frozen=True, kw_only=True):
    """A partition that a shard has but the metadata has lost."""

    group: int
    partition: str  # its namespace, in hex
    created: int
    rows: int
    bytes: int
    first_at: str | None  # of its rows
    last_at: str | None
    schema: tuple[str, ...]  # one per column; only for the first partition of each topic


class NodeFigures(JsonShape, frozen=True, kw_only=True):
    """One node. `reasons` say what is wrong; a ready node may still have some.

    `degraded`: acknowledged rows are missing, or the metadata is in doubt; the reasons say
    where.
    """

    address: str
    release: str
    path: str
    cluster: str
    served: bool  # by a running process; if false, this command opened it briefly
    ready: bool
    degraded: bool = False
    reasons: tuple[str, ...]
    next_step: str = ""  # what an operator should do, if the node is degraded
    orphans: tuple[OrphanFigures, ...] = ()  # partitions without a known topic: the first 100
    orphan_count: int = 0  # how many there are in total
    started_at: str
    uptime_seconds: float


class WorkFigures(JsonShape, frozen=True, kw_only=True):
    """What the node did for clients since it started."""

    appends: int = 0
    appended_rows: int = 0
    appended_bytes: int = 0
    fetches: int = 0
    fetched_bytes: int = 0


class Rates(JsonShape, frozen=True, kw_only=True):
    """The same per second."""

    appended_rows: float
    appended_bytes: float
    fetched_bytes: float


class TopicFigures(JsonShape, frozen=True, kw_only=True):
    """Retained rows of one topic. `end` is the sum of its partitions' next offsets."""

    topic: str
    partitions: int
    rows: int
    size: int
    end: int
    rows_per_second: float | None = None  # known from the second refresh on


class LagFigures(JsonShape, frozen=True, kw_only=True):
    """Lag of one consumer group in one topic, in rows."""

    group: str
    topic: str
    lag: int
    partitions: int
    holds: bool  # retention waits for it


class DiskFigures(JsonShape, frozen=True, kw_only=True):
    """Disk space of the log and of its file system. Slots are those of the fullest group."""

    used: int
    free: int | None
    total: int | None
    journal: int
    segments: int
    slots: int
    free_slots: int


class CheckpointFigures(JsonShape, frozen=True, kw_only=True):
    """State of the checkpoints, which move rows from the journal into segments."""

    last_at: str | None
    pending: int
    waiting: int  # requests that wait for space in the log
    unsealed_bytes: int
    failure: str | None  # of the latest attempt


class ReconcilerFigures(JsonShape, frozen=True, kw_only=True):
    """Reconciler counters since the start; `parked` and `removing` are current."""

    passes: int = 0
    builds: int = 0
    removals: int = 0
    failures: dict[str, int] = msgspec.field(default_factory=dict)
    removing: int = 0
    parked: int = 0


class Picture(JsonShape, frozen=True, kw_only=True):
    """Output of `status`: all figures at one moment."""

    node: NodeFigures
    work: WorkFigures
    rates: Rates | None = None  # known from the second refresh on
    topics: tuple[TopicFigures, ...]
    lags: tuple[LagFigures, ...]  # largest first
    disk: DiskFigures
    checkpoints: CheckpointFigures
    reconciler: ReconcilerFigures
