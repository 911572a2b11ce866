"""Parses and checks the options of the source and the sink.

Spark passes option names in lower case, mixed with its own. Any other name that has no effect
where it is given is an error that names the alternative: a silently ignored option would read
or write the wrong rows. Names and meanings follow Spark's Kafka source where it has the same
option.
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
    """The operation that options apply to."""

    BATCH = auto()
    STREAM = auto()
    WRITE = auto()
    SINK = auto()
    READ = BATCH | STREAM  # `schema` is not told which of the two
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

# Set by Spark itself, or stored by `create table` next to the options.
_SPARKS: Final = frozenset(
    {"checkpointlocation", "queryname", "provider", "owner", "comment", "location", "external"}
)
_SPARKS_PREFIXES: Final = ("option.", "asyncprogresstracking", "_asyncprogresstracking")

_TOPIC: Final = 'A query reads one topic: .option("topic", "stream/topic")'
_GROUP: Final = "Set the full name of the group: groupId"
_WAIT: Final = "Set how long a node may be unavailable: timeout"
_LIKE_KAFKA: Final = {
    "subscribe": _TOPIC,
    "assign": f"{_TOPIC}. All its partitions are read",
    "subscribepattern": f"{_TOPIC}. To read several, union their frames",
    "kafka.bootstrap.servers": 'Set the address of the log: .option("address", "host:port")',
    "kafka.group.id": _GROUP,
    "groupidprefix": _GROUP,
    "includeheaders": "Rows have no headers: store them in columns of the topic",
    "kafkaconsumer.polltimeoutms": _WAIT,
    "fetchoffset.numretries": _WAIT,
    "fetchoffset.retryintervalms": _WAIT,
}
_KAFKA: Final = "kafka."
_NO_KAFKA: Final = (
    "There is no Kafka client to configure: remove it. Use tokenFile for a token, and timeout "
    "for how long a node may be unavailable"
)
_STRATEGY: Final = "startingOffsetsByTimestampStrategy"
_DELAY: Final = "15m"  # how long a batch waits for more rows, as in Spark's Kafka source
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_NEAR: Final = 2  # edits up to which a name counts as misspelt

Start = str | dict[int, int]  # earliest, latest, or an offset for each partition
Times = datetime | dict[int, datetime]  # one for all partitions, or one for each


@dataclass(frozen=True, slots=True)
class Edge:
    """The start or the end of a range, by offsets or by times; neither if omitted."""

    option: str  # that sets it, or would
    offsets: Start | None = None
    times: Times | None = None
    is_strict: bool = False  # a time after all rows is an error


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The checked options of one query."""

    topic: str
    address: str | None
    path: str | None
    columns: tuple[str, ...] | None
    start: Edge
    end: Edge
    row_count_max: int | None
    size_max: int | None
    row_count_min: int  # a batch waits for so many
    delay_seconds: float  # at most so long
    partition_count_min: int
    task_row_count_max: int | None
    fail_on_data_loss: bool
    fail_on_other_rows: bool  # of a sink, in a version that was already published
    group: str | None
    hold: bool  # retention keeps rows until the query has read them
    schema_change: str
    token_file: str | None
    key: str | None
    app_id: str | None
    app_version: int | None
    created: int | None  # only rows of this life of the topic
    cluster: str | None  # of the log
    timeout: str | None  # of one request to the log

    @property
    def place(self) -> str:
        """Where the log is, for people."""
        return self.address or self.path or ""


def parse(given: Mapping[str, str], use: Use = Use.READ) -> SourceOptions:
    """Parse the options of one query. Raises BadConfig for the first that is wrong."""
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
        is_unset = options.address is None
        flaw = "is required unless path is set" if is_unset else "cannot be combined with path"
        hint = 'Set either .option("address", "host:port") or .option("path", dir)'
        raise BadConfig("address", flaw, hint=hint)
    if options.end.offsets == EARLIEST:
        raise BadConfig(
            "endingOffsets",
            f"cannot be {EARLIEST!r}: no row is before that",
            hint="Give latest, or an offset for each partition",
        )
    least, most = options.row_count_min, options.row_count_max
    if most is not None and least > most:
        raise BadConfig(
            "minOffsetsPerTrigger",
            f"is {least}, above maxOffsetsPerTrigger, which is {most}",
            hint=f"Give {most} or less",
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
            raise BadConfig(name, "is required", hint=f'Add .option("{name}", …)')
        return value

    def refuse_alone(self, name: str, is_meant: bool, other: str) -> None:
        """Raise BadConfig for an option that has no effect without another one."""
        if self.text(name) is not None and not is_meant:
            raise BadConfig(name, f"requires {other}", hint=f"Add {other}, or remove {name}")

    def names(self, name: str) -> tuple[str, ...] | None:
        value = self.text(name)
        if value is None:
            return None
        found = tuple(part.strip() for part in value.split(","))
        if not all(found):
            raise BadConfig(name, f"has an empty name: {value!r}", hint="Use the form a,b,c")
        return found

    def count(self, name: str) -> int | None:
        value = self.text(name)
        if value is None:
            return None
        if not (value.isascii() and value.isdigit()) or not 0 < int(value) < 2**63:
            raise BadConfig(name, f"is {value!r}", hint="Give an integer >= 1")
        return int(value)

    def size(self, name: str) -> int | None:
        return self._above_zero(name, parse_size, "a size above 0, such as 64MiB")

    def duration(self, name: str) -> str | None:
        def microseconds(text: str) -> int:
            return parse_duration(text).us

        self._above_zero(name, microseconds, "a duration above 0, such as 30s")
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
        """Return the edge, set by offsets, by one time, or by a time for each partition."""
        by_offsets, at, by_times = names
        said = [name for name in names if self.text(name) is not None]
        if len(said) > 1:
            raise BadConfig(
                said[0], f"cannot be combined with {said[1]}", hint="Set only one of them"
            )
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
                raise BadConfig(name, "has a negative offset", hint="Offsets start at 0")
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
        """Parse a JSON object by partition, each of them once."""
        value = self.needed(name)
        try:
            pairs = json.loads(value, object_pairs_hook=_Pairs)
        except (ValueError, RecursionError):
            pairs = None
        if not isinstance(pairs, _Pairs) or not all(_is_number(key) for key, _ in pairs):
            raise BadConfig(
                name, f"{value[:100]!r} is not a JSON object by partition", hint=hint
            )
        found: dict[int, object] = {}
        for key, place in pairs:
            if int(key) in found:
                raise BadConfig(name, f"lists partition {key} twice", hint=hint)
            found[int(key)] = place
        return found


class _Pairs(list[tuple[str, object]]):
    """A JSON object as written: a name may occur twice."""


def _is_number(key: str) -> bool:
    return key.isascii() and key.isdigit() and key == str(int(key))


def _moment(name: str, text: str) -> datetime:
    """Parse a time: a timestamp, a relative time, or milliseconds since 1970 as in Kafka."""
    try:
        if text.isascii() and text.isdigit():
            return _EPOCH + timedelta(milliseconds=int(text))
        return _EPOCH + timedelta(microseconds=microseconds(text))
    except (BadRequest, OverflowError):
        hint = "Give 2026-11-15T10:00Z, -10m, or milliseconds since 1970"
        raise BadConfig(
            name, f"{text[:100]!r} is not a time with its time zone", hint=hint
        ) from None


def _refuse_useless(key: str, use: Use) -> None:
    """Raise BadConfig for an option without effect. Spark's own options pass."""
    if key in _SPARKS or key.startswith(_SPARKS_PREFIXES):
        return
    name = _OURS.get(key)
    if name is None:
        raise BadConfig(key, "is not a valid option here", hint=_instead(key, use))
    if _USES[name] & use:
        return
    if name in _ENDS and use == Use.STREAM:
        hint = (
            "Read the range with spark.read, or remove the option and stop with "
            "trigger(availableNow=True)"
        )
        raise BadConfig(name, "a stream has no end", hint=hint)
    wheres = " and ".join(_WORDS[each] for each in _USES[name])
    here = " or ".join(_WORDS[each] for each in use)
    raise BadConfig(name, f"applies to {wheres}, not to {here}", hint="Remove it")


def _instead(key: str, use: Use) -> str:
    """Return the hint for an unknown option."""
    if key in _LIKE_KAFKA:
        return _LIKE_KAFKA[key]
    if key.startswith(_KAFKA):
        return _NO_KAFKA
    near = suggestion(key)
    if near is not None:
        return f"Did you mean {near}?"
    return f"Valid options: {', '.join(name for name, uses in _USES.items() if uses & use)}"


def suggestion(name: str) -> str | None:
    """Return the option that a misspelt name probably stands for."""
    near = (shown for key, shown in _OURS.items() if _distance(name.lower(), key) <= _NEAR)
    return next(near, None)


def _distance(a: str, b: str) -> int:
    """Return the edit distance of two words, or more than `_NEAR` if it is larger."""
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
