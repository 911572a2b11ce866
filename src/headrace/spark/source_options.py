"""The options of the source and the sink: what may be said, and what was meant.

Spark gives option names in lower case, and its own among them. Any other name that means
nothing where it is given is an error that says what to use instead: an option that is ignored
reads or writes other rows than the ones that were meant. Names and meanings are those of
Spark's Kafka source, where it has the same thing.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import Flag, auto
from typing import Final

from headrace.client.values.parse import microseconds
from headrace.errors import BadConfig, BadRequest
from headrace.model.units import parse_duration, parse_size

EARLIEST: Final = "earliest"
LATEST: Final = "latest"
STOP: Final = "stop"
PIN: Final = "pin"


class Use(Flag):
    """What options are given to."""

    BATCH = auto()
    STREAM = auto()
    WRITE = auto()
    SINK = auto()
    READ = BATCH | STREAM  # which of the two, the schema is not told
    PUT = WRITE | SINK
    ANY = READ | PUT


_WORDS: Final = {
    Use.BATCH: "spark.read",
    Use.STREAM: "spark.readStream",
    Use.WRITE: "write",
    Use.SINK: "writeStream",
}
_USES: Final = {
    "topic": Use.ANY,
    "address": Use.ANY,
    "path": Use.ANY,
    "tokenFile": Use.ANY,
    "timeout": Use.ANY,
    "columns": Use.READ,
    "startingOffsets": Use.READ,
    "startingTimestamp": Use.READ,
    "startingOffsetsByTimestamp": Use.READ,
    "startingOffsetsByTimestampStrategy": Use.READ,
    "endingOffsets": Use.BATCH,
    "endingTimestamp": Use.BATCH,
    "endingOffsetsByTimestamp": Use.BATCH,
    "minPartitions": Use.READ,
    "maxRecordsPerPartition": Use.READ,
    "failOnDataLoss": Use.READ,
    "maxOffsetsPerTrigger": Use.STREAM,
    "maxBytesPerTrigger": Use.STREAM,
    "minOffsetsPerTrigger": Use.STREAM,
    "maxTriggerDelay": Use.STREAM,
    "groupId": Use.STREAM,
    "holdRetention": Use.STREAM,
    "schemaChange": Use.STREAM,
    "topicCreated": Use.BATCH,
    "topicCluster": Use.BATCH,
    "key": Use.PUT,
    "failOnOtherRows": Use.PUT,
    "txnAppId": Use.WRITE,
    "txnVersion": Use.WRITE,
}
_OURS: Final = {name.lower(): name for name in _USES}
_STARTS: Final = ("startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp")
_ENDS: Final = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")

# What Spark itself gives to a source or a sink, and what `create table` keeps beside options.
_SPARKS: Final = frozenset(
    {"checkpointlocation", "queryname", "provider", "owner", "comment", "location", "external"}
)
_SPARKS_PREFIXES: Final = ("option.", "asyncprogresstracking", "_asyncprogresstracking")

_TOPIC: Final = 'A query reads one topic: .option("topic", "stream/topic")'
_GROUP: Final = "Give the whole name of the group: groupId"
_WAIT: Final = "Say how long a node may be away: timeout"
_LIKE_KAFKA: Final = {
    "subscribe": _TOPIC,
    "assign": f"{_TOPIC}. Its partitions are all read",
    "subscribepattern": f"{_TOPIC}. Union the frames of several",
    "kafka.bootstrap.servers": 'Say where the log is: .option("address", "host:port")',
    "kafka.group.id": _GROUP,
    "groupidprefix": _GROUP,
    "includeheaders": "Rows have columns, and no headers: make them columns of the topic",
    "kafkaconsumer.polltimeoutms": _WAIT,
    "fetchoffset.numretries": _WAIT,
    "fetchoffset.retryintervalms": _WAIT,
}
_KAFKA: Final = "kafka."
_NO_KAFKA: Final = (
    "No Kafka client reads this: leave it out. A token is tokenFile, and how long a node may "
    "be away is timeout"
)
_STRATEGY: Final = "startingOffsetsByTimestampStrategy"
_DELAY: Final = "15m"  # of a batch that waits for more rows, as Kafka's source has it
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_NEAR: Final = 2  # edits that make a name a misspelt one

Start = str | dict[int, int]  # earliest, latest, or an offset for each partition
Times = datetime | dict[int, datetime]  # of all partitions, or of each


@dataclass(frozen=True, slots=True)
class Edge:
    """Where a range begins, or ends: by offsets, by times, or not said."""

    option: str  # that says it, or would
    offsets: Start | None = None
    times: Times | None = None
    is_strict: bool = False  # a time behind all rows is an error


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """What a query says about a topic, checked."""

    topic: str
    address: str | None
    path: str | None
    columns: tuple[str, ...] | None
    start: Edge
    end: Edge
    row_count_max: int | None
    size_max: int | None
    row_count_min: int  # that a batch waits for
    delay_seconds: float  # and how long
    partition_count_min: int
    task_row_count_max: int | None
    fail_on_data_loss: bool
    fail_on_other_rows: bool  # of a sink, under a version that was published before
    group: str | None
    hold: bool  # rows stay until the query has read them
    schema_change: str
    token_file: str | None
    key: str | None
    app_id: str | None
    app_version: int | None
    created: int | None  # of the topic: its rows in just this life are meant
    cluster: str | None  # of the log
    timeout: str | None  # of one question to the log

    @property
    def place(self) -> str:
        """Where the log is, in words."""
        return self.address or self.path or ""


def parse(given: Mapping[str, str], use: Use = Use.READ) -> SourceOptions:
    """Read the options of one query. BadConfig names what is wrong."""
    found = {key.lower(): value for key, value in given.items()}
    for key in found:
        _refuse_useless(key, use)
    taken = _Taken(found)
    options = SourceOptions(
        topic=taken.needed("topic"),
        address=taken.text("address"),
        path=taken.text("path"),
        columns=taken.names("columns"),
        start=taken.edge(_STARTS),
        end=taken.edge(_ENDS),
        row_count_max=taken.count("maxOffsetsPerTrigger"),
        size_max=taken.size("maxBytesPerTrigger"),
        row_count_min=taken.count("minOffsetsPerTrigger") or 1,
        delay_seconds=parse_duration(taken.duration("maxTriggerDelay") or _DELAY).seconds,
        partition_count_min=taken.count("minPartitions") or 1,
        task_row_count_max=taken.count("maxRecordsPerPartition"),
        fail_on_data_loss=taken.switch("failOnDataLoss", default=True),
        fail_on_other_rows=taken.switch("failOnOtherRows", default=True),
        group=taken.text("groupId"),
        hold=taken.switch("holdRetention", default=True),
        schema_change=taken.one_of("schemaChange", (STOP, PIN)),
        token_file=taken.text("tokenFile"),
        key=taken.text("key"),
        app_id=taken.text("txnAppId"),
        app_version=taken.count("txnVersion"),
        created=taken.count("topicCreated"),
        cluster=taken.text("topicCluster"),
        timeout=taken.duration("timeout"),
    )
    _check_together(options)
    taken.refuse_alone(_STRATEGY, options.start.times is not None, _STARTS[1])
    taken.refuse_alone("maxTriggerDelay", options.row_count_min > 1, "minOffsetsPerTrigger")
    return options


def _check_together(options: SourceOptions) -> None:
    if (options.address is None) == (options.path is None):
        flaw = "is not said" if options.address is None else "and path are both said"
        hint = 'Say where the log is: .option("address", "host:port") or .option("path", dir)'
        raise BadConfig("address", flaw, hint=hint)
    if options.end.offsets == EARLIEST:
        raise BadConfig(
            "endingOffsets",
            f"is {EARLIEST!r}, and nothing is before that",
            hint="Give latest, or an offset for each partition",
        )
    least, most = options.row_count_min, options.row_count_max
    if most is not None and least > most:
        raise BadConfig(
            "minOffsetsPerTrigger",
            f"is {least}, and maxOffsetsPerTrigger {most}",
            hint="Give the same or less",
        )


@dataclass(frozen=True, slots=True)
class _Taken:
    found: Mapping[str, str]

    def text(self, name: str) -> str | None:
        value = self.found.get(name.lower())
        return None if value is None else str(value).strip()

    def needed(self, name: str) -> str:
        value = self.text(name)
        if not value:
            raise BadConfig(name, "is not said", hint=f'Add .option("{name}", …)')
        return value

    def refuse_alone(self, name: str, is_meant: bool, other: str) -> None:
        """Raise BadConfig for an option that means nothing without another one."""
        if self.text(name) is not None and not is_meant:
            raise BadConfig(name, f"is said without {other}", hint=f"Add {other}, or leave it")

    def names(self, name: str) -> tuple[str, ...] | None:
        value = self.text(name)
        if value is None:
            return None
        found = tuple(part.strip() for part in value.split(","))
        if not all(found):
            raise BadConfig(name, f"has an empty name: {value!r}", hint="Write a,b,c")
        return found

    def count(self, name: str) -> int | None:
        value = self.text(name)
        if value is None:
            return None
        if not (value.isascii() and value.isdigit()) or not 0 < int(value) < 2**63:
            raise BadConfig(name, f"is {value!r}", hint="Give a whole number from 1 on")
        return int(value)

    def size(self, name: str) -> int | None:
        return self._above_zero(name, parse_size, "a size above 0, such as 64MiB")

    def duration(self, name: str) -> str | None:
        def microseconds(text: str) -> int:
            return parse_duration(text).us

        self._above_zero(name, microseconds, "a time above 0, such as 30s")
        return self.text(name)

    def _above_zero(self, name: str, parse: Callable[[str], int], wanted: str) -> int | None:
        value = self.text(name)
        if value is None:
            return None
        try:
            found = parse(value)
        except BadConfig as error:
            raise BadConfig(name, Exception.__str__(error), hint=error.hint) from None
        if found <= 0:
            raise BadConfig(name, f"is {value!r}", hint=f"Give {wanted}")
        return found

    def switch(self, name: str, *, default: bool) -> bool:
        value = self.text(name)
        if value is None:
            return default
        if value.lower() not in ("true", "false"):
            raise BadConfig(name, f"is {value!r}", hint="Give true or false")
        return value.lower() == "true"

    def one_of(self, name: str, words: tuple[str, ...]) -> str:
        value = self.text(name)
        if value is None:
            return words[0]
        if value.lower() not in words:
            raise BadConfig(name, f"is {value!r}", hint=f"Give {' or '.join(words)}")
        return value.lower()

    def edge(self, names: tuple[str, str, str]) -> Edge:
        """Return the one edge that is said, by offsets, a time, or a time for each."""
        by_offsets, at, by_times = names
        said = [name for name in names if self.text(name) is not None]
        if len(said) > 1:
            raise BadConfig(said[0], f"and {said[1]} are both said", hint="Give one of them")
        option = said[0] if said else by_offsets
        if option == by_offsets:
            return Edge(option, offsets=self.offsets(option))
        times = self.moment(option) if option == at else self.moments(by_times)
        is_strict = self.one_of(_STRATEGY, (LATEST, "error")) == "error"
        return Edge(option, times=times, is_strict=is_strict and names == _STARTS)

    def offsets(self, name: str) -> Start | None:
        value = self.text(name)
        if value is None or value.lower() in (EARLIEST, LATEST):
            return value if value is None else value.lower()
        hint = 'Give earliest, latest, or an offset for each partition: {"0": 10, "1": 7}'
        found: dict[int, int] = {}
        for number, place in self._by_partition(name, hint).items():
            if type(place) is not int:
                raise BadConfig(name, f"has {place!r} for partition {number}", hint=hint)
            if place < 0:
                raise BadConfig(name, "has an offset below 0", hint="Offsets begin with 0")
            found[number] = place
        return found

    def moment(self, name: str) -> datetime:
        return _moment(name, self.needed(name))

    def moments(self, name: str) -> dict[int, datetime]:
        hint = 'Give a time for each partition: {"0": "2026-11-15T10:00Z", "1": "-10m"}'
        return {
            number: _moment(name, str(time))
            for number, time in self._by_partition(name, hint).items()
        }

    def _by_partition(self, name: str, hint: str) -> dict[int, object]:
        """Read a JSON object of partitions, in which each is there once."""
        value = self.needed(name)
        try:
            pairs = json.loads(value, object_pairs_hook=_Pairs)
        except (ValueError, RecursionError):
            pairs = None
        if not isinstance(pairs, _Pairs) or not all(_is_number(key) for key, _ in pairs):
            raise BadConfig(name, f"is {value[:100]!r}", hint=hint)
        found: dict[int, object] = {}
        for key, place in pairs:
            if int(key) in found:
                raise BadConfig(name, f"has partition {key} twice", hint=hint)
            found[int(key)] = place
        return found


class _Pairs(list[tuple[str, object]]):
    """A JSON object as it was written: a name may be there twice."""


def _is_number(key: str) -> bool:
    return key.isascii() and key.isdigit() and key == str(int(key))


def _moment(name: str, text: str) -> datetime:
    """Read a time: of a user, or in milliseconds since 1970, as Kafka has it."""
    try:
        if text.isascii() and text.isdigit():
            return _EPOCH + timedelta(milliseconds=int(text))
        return _EPOCH + timedelta(microseconds=microseconds(text))
    except (BadRequest, OverflowError):
        hint = "Give 2026-11-15T10:00Z, -10m, or milliseconds since 1970"
        raise BadConfig(name, f"{text[:100]!r} is no time with its zone", hint=hint) from None


def _refuse_useless(key: str, use: Use) -> None:
    """Raise BadConfig for an option that would be ignored. Spark's own pass."""
    if key in _SPARKS or key.startswith(_SPARKS_PREFIXES):
        return
    name = _OURS.get(key)
    if name is None:
        raise BadConfig(key, "is no option here", hint=_instead(key, use))
    if _USES[name] & use:
        return
    if name in _ENDS and use == Use.STREAM:
        hint = (
            "Read the range with spark.read, or leave the option out and stop with "
            "trigger(availableNow=True)"
        )
        raise BadConfig(name, "a stream has no end", hint=hint)
    wheres = " and ".join(_WORDS[each] for each in _USES[name])
    here = " or ".join(_WORDS[each] for each in use)
    raise BadConfig(name, f"is an option of {wheres}, not of {here}", hint="Leave it out")


def _instead(key: str, use: Use) -> str:
    """Return what to do in place of an option that is none."""
    if key in _LIKE_KAFKA:
        return _LIKE_KAFKA[key]
    if key.startswith(_KAFKA):
        return _NO_KAFKA
    near = suggestion(key)
    if near is not None:
        return f"Is it {near}?"
    return f"There are {', '.join(name for name, uses in _USES.items() if uses & use)}"


def suggestion(name: str) -> str | None:
    """Return the option that a misspelt name may have meant."""
    near = (shown for key, shown in _OURS.items() if _distance(name.lower(), key) <= _NEAR)
    return next(near, None)


def _distance(a: str, b: str) -> int:
    """Count the edits that make one word the other."""
    if abs(len(a) - len(b)) > _NEAR:
        return _NEAR + 1
    row = list(range(len(b) + 1))
    for number, letter in enumerate(a, 1):
        before, row[0] = row[0], number
        for place, other in enumerate(b, 1):
            before, row[place] = (
                row[place],
                min(row[place] + 1, row[place - 1] + 1, before + (letter != other)),
            )
    return row[-1]
