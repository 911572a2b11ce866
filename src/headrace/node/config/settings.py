"""All settings of a node: section, type, limits, default and description, in one place.

`docs/configuration.md` shows the same as tables. Constraints between settings are in
`node/config/setting_rules.py`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, Final, get_args, get_type_hints

from headrace.journal.entry import BODY_SIZE_MAX
from headrace.journal.recovery.recover import (
    FILE_SIZE,
    SLOTS_METADATA,
    SLOTS_MIN,
    SLOTS_SHARD,
    SPARE_COUNT_MAX,
)
from headrace.model.units import DAY, GIB, HOUR, KIB, MIB, MILLISECOND, MINUTE, SECOND, Duration
from headrace.node.config.setting_kinds import (
    AddressKind,
    Choice,
    Count,
    PathKind,
    Secret,
    SettingKind,
    Size,
    SpanKind,
    Switch,
    Text,
)
from headrace.node.group.seal_pace import SEAL_AGE_US, SEAL_SIZE

LISTEN: Final = AddressKind("127.0.0.1", 7654)
LISTEN_HTTP: Final = AddressKind("127.0.0.1", 7655)
SEAL_AGE: Final = Duration(SEAL_AGE_US)

SHARDS_MAX: Final = 256  # each has a thread, a journal and its spares
REPLICAS_MAX: Final = 255
SLOTS_MAX: Final = 2**24  # a slot keeps its entry's header in memory
JOURNAL_FILE_SIZE_MAX: Final = 4 * GIB  # a larger number in a header is treated as corruption
TICK_MAX: Final = 30 * SECOND  # upper bound on the delay that a lost wake-up causes
_TIMEOUT: Final = SpanKind(MILLISECOND, HOUR)


@dataclass(frozen=True, slots=True)
class Listen:
    """The addresses of the node."""

    address: Annotated[
        AddressKind, PathKind(), "address for clients; port 0 picks any free port"
    ] = LISTEN
    advertise: Annotated[
        AddressKind | None,
        PathKind(port_least=1, may_be_empty=True),
        "address announced to clients; empty: the listen address",
    ] = None
    http: Annotated[
        AddressKind | None,
        PathKind(may_be_empty=True),
        "address for health and metrics, without authentication; empty: disabled",
    ] = LISTEN_HTTP
    socket: Annotated[bool, Switch(), "also listen on a Unix socket in the data directory"] = (
        True
    )


@dataclass(frozen=True, slots=True)
class Data:
    """The location of the log."""

    path: Annotated[str, Text(), "data directory; given on the command line"] = ""


@dataclass(frozen=True, slots=True)
class Cluster:
    """Properties of a cluster. Read only when a data directory is created."""

    shards: Annotated[
        int, Count(1, SHARDS_MAX), "groups that hold partitions; each topic lives in one"
    ] = 1
    replicas: Annotated[
        int, Count(1, REPLICAS_MAX), "copies of every group; this release supports 1"
    ] = 1
    stream_bits: Annotated[int, Count(1, 62), "bits of the stream ID in a namespace"] = 16
    topic_bits: Annotated[int, Count(1, 62), "bits of the topic ID in a namespace"] = 24
    partition_bits: Annotated[int, Count(1, 62), "bits of the partition ID in a namespace"] = 24


@dataclass(frozen=True, slots=True)
class JournalSettings:
    """The on-disk log of a group."""

    file_size: Annotated[
        int,
        Size(MIB, JOURNAL_FILE_SIZE_MAX, multiple=4 * KIB),
        "maximum size of a journal file; a larger entry gets a file of its own",
    ] = FILE_SIZE
    slots: Annotated[
        int,
        Count(SLOTS_MIN, SLOTS_MAX),
        "ops a shard may be ahead of its previous checkpoint; never reduce it",
    ] = SLOTS_SHARD
    metadata_slots: Annotated[
        int, Count(SLOTS_MIN, SLOTS_MAX), "the same for the metadata group"
    ] = SLOTS_METADATA
    spare_count: Annotated[int, Count(1, 64), "drained files that a group keeps for reuse"] = (
        SPARE_COUNT_MAX
    )


@dataclass(frozen=True, slots=True)
class Commit:
    """Writing entries to disk."""

    pipeline: Annotated[int, Count(1, 65_536), "maximum ops in flight per group"] = 1024
    pipeline_size: Annotated[
        int, Size(64 * KIB, 4 * GIB), "maximum body bytes in flight per group"
    ] = 64 * MIB
    group_size: Annotated[
        int,
        Size(64 * KIB, GIB),
        "bytes written per sync; a larger entry forms its own commit group",
    ] = 8 * MIB


@dataclass(frozen=True, slots=True)
class SealSettings:
    """Moving rows from the journal into segments."""

    size: Annotated[
        int, Size(64 * KIB, 64 * GIB), "body bytes since the last seal that trigger the next"
    ] = SEAL_SIZE
    age: Annotated[
        Duration,
        SpanKind(100 * MILLISECOND, DAY),
        "age of the oldest unsealed entry that triggers a seal",
    ] = SEAL_AGE
    children: Annotated[int, Count(1, 64), "processes per shard that write segments"] = 2


@dataclass(frozen=True, slots=True)
class Reconcile:
    """Applying metadata changes to partitions."""

    tick: Annotated[
        Duration,
        SpanKind(10 * MILLISECOND, TICK_MAX),
        "time between passes when no metadata change triggers one",
    ] = SECOND
    park_deadline: Annotated[
        Duration,
        SpanKind(MILLISECOND, 5 * MINUTE),
        "how long a request waits for its partition to be created",
    ] = 5 * SECOND


@dataclass(frozen=True, slots=True)
class RetentionSettings:
    """Expiring rows."""

    tick: Annotated[
        Duration, SpanKind(100 * MILLISECOND, HOUR), "time between checks for expired rows"
    ] = 30 * SECOND
    max_hold: Annotated[
        Duration,
        SpanKind(SECOND, 3650 * DAY),
        "age at which rows expire even if a consumer group holds them",
    ] = 30 * DAY


@dataclass(frozen=True, slots=True)
class ScrubSettings:
    """Rereading files to detect bit rot while copies still exist."""

    every: Annotated[
        Duration, SpanKind(SECOND, 3650 * DAY), "time between passes over all files"
    ] = 7 * DAY
    rate: Annotated[int, Size(64 * KIB, 64 * GIB), "maximum bytes a pass reads per second"] = (
        16 * MIB
    )


@dataclass(frozen=True, slots=True)
class LimitSettings:
    """Limits on peers."""

    connections: Annotated[int, Count(1, 65_536), "maximum concurrent connections"] = 1024
    in_flight: Annotated[
        int, Count(1, 65_536), "maximum concurrent requests per connection"
    ] = 1024
    in_flight_size: Annotated[
        int, Size(64 * KIB, 64 * GIB), "maximum body bytes in flight per connection"
    ] = 64 * MIB
    queue_size: Annotated[
        int, Size(64 * KIB, 1024 * GIB), "maximum body bytes in flight per node"
    ] = 256 * MIB
    handshake_timeout: Annotated[
        Duration, _TIMEOUT, "time a new connection has to complete its handshake"
    ] = 5 * SECOND
    idle_timeout: Annotated[
        Duration, SpanKind(MILLISECOND, DAY), "time until an idle connection is closed"
    ] = 5 * MINUTE
    stall_timeout: Annotated[
        Duration,
        _TIMEOUT,
        "time until a peer that stalls within a frame or stops reading is disconnected",
    ] = 30 * SECOND
    body_size: Annotated[int, Size(64 * KIB, BODY_SIZE_MAX), "maximum size of a body"] = (
        BODY_SIZE_MAX
    )
    fetch_size: Annotated[
        int, Size(64 * KIB, BODY_SIZE_MAX), "target size of the response to a fetch"
    ] = 16 * MIB


@dataclass(frozen=True, slots=True)
class RequestSettings:
    """Deadlines of requests."""

    timeout: Annotated[Duration, _TIMEOUT, "default deadline of a request"] = 30 * SECOND
    timeout_max: Annotated[Duration, _TIMEOUT, "maximum deadline a request may set"] = (
        5 * MINUTE
    )


@dataclass(frozen=True, slots=True)
class Stop:
    """Stopping the node."""

    timeout: Annotated[Duration, _TIMEOUT, "how long a stop waits for work in flight"] = (
        30 * SECOND
    )


@dataclass(frozen=True, slots=True)
class Auth:
    """Authentication."""

    token: Annotated[
        str, Secret(), "secret that clients must prove to know; empty: no authentication"
    ] = field(default="", repr=False)
    token_file: Annotated[str, Text(), "file with the token on one line"] = ""


@dataclass(frozen=True, slots=True)
class LogSettings:
    """Logging of events to standard error."""

    format: Annotated[str, Choice(("text", "json")), "aligned text, or JSON lines"] = "text"
    level: Annotated[
        str, Choice(("debug", "info", "warning", "error")), "lowest level that is logged"
    ] = "info"


@dataclass(frozen=True, slots=True)
class Config:
    """All settings. `config.load` returns a validated one; the defaults are valid."""

    listen: Listen = field(default_factory=Listen)
    data: Data = field(default_factory=Data)
    cluster: Cluster = field(default_factory=Cluster)
    journal: JournalSettings = field(default_factory=JournalSettings)
    commit: Commit = field(default_factory=Commit)
    seal: SealSettings = field(default_factory=SealSettings)
    reconcile: Reconcile = field(default_factory=Reconcile)
    retention: RetentionSettings = field(default_factory=RetentionSettings)
    scrub: ScrubSettings = field(default_factory=ScrubSettings)
    limits: LimitSettings = field(default_factory=LimitSettings)
    request: RequestSettings = field(default_factory=RequestSettings)
    stop: Stop = field(default_factory=Stop)
    auth: Auth = field(default_factory=Auth)
    log: LogSettings = field(default_factory=LogSettings)


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting, for the loader, the effective config file and the documentation."""

    section: str
    name: str
    kind: SettingKind
    meaning: str
    default: object

    @property
    def key(self) -> str:
        return f"{self.section}.{self.name}"

    @property
    def variable(self) -> str:
        return f"HEADRACE_{self.section}__{self.name}".upper()

    def of(self, config: Config) -> object:
        """Return the value of this setting in `config`."""
        value: object = getattr(getattr(config, self.section), self.name)
        return value


def _settings() -> Mapping[str, Setting]:
    found = {}
    for section in fields(Config):
        cls: Any = get_type_hints(Config)[section.name]
        hints = get_type_hints(cls, include_extras=True)
        for each in fields(cls):
            _, kind, meaning = get_args(hints[each.name])
            setting = Setting(section.name, each.name, kind, meaning, each.default)
            found[setting.key] = setting
    return found


SETTINGS: Final = _settings()  # by dotted key, in the order above
