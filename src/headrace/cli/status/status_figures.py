"""What `headrace status --json` prints, and the view is drawn from."""

import msgspec

from headrace.cli.terminal.output import JsonShape


class OrphanFigures(JsonShape, frozen=True, kw_only=True):
    """A partition that a shard has, and that the metadata has lost."""

    group: int
    partition: str  # its namespace, in hex
    created: int
    rows: int
    bytes: int
    first_at: str | None  # of its rows
    last_at: str | None
    schema: tuple[str, ...]  # a column each; shown at the first partition of each topic


class NodeFigures(JsonShape, frozen=True, kw_only=True):
    """One node. `reasons` say what is wrong; a node that is ready may still have some.

    `degraded`: it misses rows that were acknowledged, or its metadata is in doubt, and the
    reasons say where.
    """

    address: str
    release: str
    path: str
    cluster: str
    served: bool  # by a process of its own; if not, this command opened it for the moment
    ready: bool
    degraded: bool = False
    reasons: tuple[str, ...]
    next_step: str = ""  # what an operator does about it, if the node is degraded
    orphans: tuple[OrphanFigures, ...] = ()  # of no topic that is known: the first 100
    orphan_count: int = 0  # how many there are
    started_at: str
    uptime_seconds: float


class WorkFigures(JsonShape, frozen=True, kw_only=True):
    """What clients had done since the node started."""

    appends: int = 0
    appended_rows: int = 0
    appended_bytes: int = 0
    fetches: int = 0
    fetched_bytes: int = 0


class Rates(JsonShape, frozen=True, kw_only=True):
    """The same for one second."""

    appended_rows: float
    appended_bytes: float
    fetched_bytes: float


class TopicFigures(JsonShape, frozen=True, kw_only=True):
    """What is retained of one topic. `end` is the sum of its partitions' next offsets."""

    topic: str
    partitions: int
    rows: int
    size: int
    end: int
    rows_per_second: float | None = None  # known from the second look on


class LagFigures(JsonShape, frozen=True, kw_only=True):
    """How far one consumer group is behind in one topic, in rows."""

    group: str
    topic: str
    lag: int
    partitions: int
    holds: bool  # retention waits for it


class DiskFigures(JsonShape, frozen=True, kw_only=True):
    """What the log takes, and what its file system has. Slots are of the fullest group."""

    used: int
    free: int | None
    total: int | None
    journal: int
    segments: int
    slots: int
    free_slots: int


class CheckpointFigures(JsonShape, frozen=True, kw_only=True):
    """How the way from the journal into segments is."""

    last_at: str | None
    pending: int
    waiting: int  # requests that wait for room in the log
    unsealed_bytes: int
    failure: str | None  # of the newest try


class ReconcilerFigures(JsonShape, frozen=True, kw_only=True):
    """What reconcilers did since the start; `parked` and `removing` are of now."""

    passes: int = 0
    builds: int = 0
    removals: int = 0
    failures: dict[str, int] = msgspec.field(default_factory=dict)
    removing: int = 0
    parked: int = 0


class Picture(JsonShape, frozen=True, kw_only=True):
    """All of it, at one moment."""

    node: NodeFigures
    work: WorkFigures
    rates: Rates | None = None  # known from the second look on
    topics: tuple[TopicFigures, ...]
    lags: tuple[LagFigures, ...]  # the largest first
    disk: DiskFigures
    checkpoints: CheckpointFigures
    reconciler: ReconcilerFigures
