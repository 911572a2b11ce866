"""Every setting of a node: its section, kind, limits, default and meaning, in one place.

`docs/configuration.md` shows the same as tables. What one setting demands of another is in
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
JOURNAL_FILE_SIZE_MAX: Final = 4 * GIB  # a larger number in a header is taken for rot
TICK_MAX: Final = 30 * SECOND  # a pass that a lost wake-up delays is never later than this
_TIMEOUT: Final = SpanKind(MILLISECOND, HOUR)


@dataclass(frozen=True, slots=True)
class Listen:
    """Where the node is reached."""

    address: Annotated[
        AddressKind, PathKind(), "where clients connect; port 0 takes any that is free"
    ] = LISTEN
    advertise: Annotated[
        AddressKind | None,
        PathKind(port_least=1, may_be_empty=True),
        "the address that clients are told to use; empty: the one listened on",
    ] = None
    http: Annotated[
        AddressKind | None,
        PathKind(may_be_empty=True),
        "where health and metrics are served, to anyone who asks; empty: nowhere",
    ] = LISTEN_HTTP
    socket: Annotated[bool, Switch(), "listen on a unix socket in the data directory, too"] = (
        True
    )


@dataclass(frozen=True, slots=True)
class Data:
    """Where the log is kept."""

    path: Annotated[str, Text(), "the data directory; the command line names it"] = ""


@dataclass(frozen=True, slots=True)
class Cluster:
    """What a cluster is made with. Read only when a data directory is made."""

    shards: Annotated[
        int, Count(1, SHARDS_MAX), "groups that carry partitions; each topic lives in one"
    ] = 1
    replicas: Annotated[
        int, Count(1, REPLICAS_MAX), "copies of every group; this release runs 1"
    ] = 1
    stream_bits: Annotated[int, Count(1, 62), "width of a stream's id in a namespace"] = 16
    topic_bits: Annotated[int, Count(1, 62), "width of a topic's id in a namespace"] = 24
    partition_bits: Annotated[int, Count(1, 62), "width of a partition's id in a namespace"] = (
        24
    )


@dataclass(frozen=True, slots=True)
class JournalSettings:
    """A group's log on disk."""

    file_size: Annotated[
        int,
        Size(MIB, JOURNAL_FILE_SIZE_MAX, multiple=4 * KIB),
        "bytes that journal files grow to; an entry that needs more gets a file of its own",
    ] = FILE_SIZE
    slots: Annotated[
        int,
        Count(SLOTS_MIN, SLOTS_MAX),
        "ops that a shard may be ahead of its previous checkpoint; never make it smaller",
    ] = SLOTS_SHARD
    metadata_slots: Annotated[
        int, Count(SLOTS_MIN, SLOTS_MAX), "the same for the metadata group"
    ] = SLOTS_METADATA
    spare_count: Annotated[
        int, Count(1, 64), "drained files that a group keeps for its next rolls"
    ] = SPARE_COUNT_MAX


@dataclass(frozen=True, slots=True)
class Commit:
    """How entries reach the disk."""

    pipeline: Annotated[int, Count(1, 65_536), "ops in flight in one group"] = 1024
    pipeline_size: Annotated[
        int, Size(64 * KIB, 4 * GIB), "body bytes in flight in one group"
    ] = 64 * MIB
    group_size: Annotated[
        int,
        Size(64 * KIB, GIB),
        "bytes written before one sync; a larger entry is a commit group alone",
    ] = 8 * MIB


@dataclass(frozen=True, slots=True)
class SealSettings:
    """When rows go from the journal into segments."""

    size: Annotated[
        int, Size(64 * KIB, 64 * GIB), "body bytes since the last seal that bring the next"
    ] = SEAL_SIZE
    age: Annotated[
        Duration,
        SpanKind(100 * MILLISECOND, DAY),
        "age of the oldest unsealed entry that brings one",
    ] = SEAL_AGE
    children: Annotated[int, Count(1, 64), "processes of one shard that write segments"] = 2


@dataclass(frozen=True, slots=True)
class Reconcile:
    """How partitions follow the metadata."""

    tick: Annotated[
        Duration,
        SpanKind(10 * MILLISECOND, TICK_MAX),
        "time between passes when no change of metadata brings one",
    ] = SECOND
    park_deadline: Annotated[
        Duration,
        SpanKind(MILLISECOND, 5 * MINUTE),
        "how long a request waits for its partition to be made",
    ] = 5 * SECOND


@dataclass(frozen=True, slots=True)
class RetentionSettings:
    """How rows expire."""

    tick: Annotated[
        Duration, SpanKind(100 * MILLISECOND, HOUR), "time between looks for rows that expired"
    ] = 30 * SECOND
    max_hold: Annotated[
        Duration,
        SpanKind(SECOND, 3650 * DAY),
        "age at which rows go even if a consumer group holds them",
    ] = 30 * DAY


@dataclass(frozen=True, slots=True)
class ScrubSettings:
    """How files are read again, to find rot while there are copies."""

    every: Annotated[
        Duration, SpanKind(SECOND, 3650 * DAY), "time from one pass over all files to the next"
    ] = 7 * DAY
    rate: Annotated[
        int, Size(64 * KIB, 64 * GIB), "bytes that a pass reads in a second, at most"
    ] = 16 * MIB


@dataclass(frozen=True, slots=True)
class LimitSettings:
    """What peers may ask of the node."""

    connections: Annotated[int, Count(1, 65_536), "connections at once"] = 1024
    in_flight: Annotated[int, Count(1, 65_536), "requests at once on one connection"] = 1024
    in_flight_size: Annotated[
        int, Size(64 * KIB, 64 * GIB), "body bytes at once on one connection"
    ] = 64 * MIB
    queue_size: Annotated[
        int, Size(64 * KIB, 1024 * GIB), "body bytes at once in the whole node"
    ] = 256 * MIB
    handshake_timeout: Annotated[
        Duration, _TIMEOUT, "until a new connection has said who it is"
    ] = 5 * SECOND
    idle_timeout: Annotated[
        Duration, SpanKind(MILLISECOND, DAY), "until a connection with nothing to do is closed"
    ] = 5 * MINUTE
    stall_timeout: Annotated[
        Duration,
        _TIMEOUT,
        "until a peer is cut off that stops within a frame, or does not read",
    ] = 30 * SECOND
    body_size: Annotated[
        int, Size(64 * KIB, BODY_SIZE_MAX), "bytes of the largest body that is taken"
    ] = BODY_SIZE_MAX
    fetch_size: Annotated[
        int, Size(64 * KIB, BODY_SIZE_MAX), "bytes that the answer to one fetch aims at"
    ] = 16 * MIB


@dataclass(frozen=True, slots=True)
class RequestSettings:
    """Deadlines of requests."""

    timeout: Annotated[Duration, _TIMEOUT, "deadline of a request that names none"] = (
        30 * SECOND
    )
    timeout_max: Annotated[Duration, _TIMEOUT, "the latest deadline a request may name"] = (
        5 * MINUTE
    )


@dataclass(frozen=True, slots=True)
class Stop:
    """How the node stops."""

    timeout: Annotated[
        Duration, _TIMEOUT, "until a stop no longer waits for what is in flight"
    ] = 30 * SECOND


@dataclass(frozen=True, slots=True)
class Auth:
    """Who may connect."""

    token: Annotated[str, Secret(), "what clients must prove to have; empty: no token"] = field(
        default="", repr=False
    )
    token_file: Annotated[str, Text(), "a file whose one line is the token"] = ""


@dataclass(frozen=True, slots=True)
class LogSettings:
    """How events are written, to standard error."""

    format: Annotated[str, Choice(("text", "json")), "aligned lines, or JSON lines"] = "text"
    level: Annotated[
        str, Choice(("debug", "info", "warning", "error")), "the least that is written"
    ] = "info"


@dataclass(frozen=True, slots=True)
class Config:
    """All settings. `config.load` makes a checked one; the defaults are sound."""

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
    """One setting as the loader, the effective file and the document see it."""

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
        """Return its value in `config`."""
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
