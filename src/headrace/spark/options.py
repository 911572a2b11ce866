"""The options of the source and the sink: what may be said, and what was meant.

Spark gives option names in lower case. A name that is nearly one of ours is an error with the
suggestion; other names are Spark's own, and pass.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from headrace.errors import BadConfig
from headrace.model.units import parse_duration, parse_size

EARLIEST: Final = "earliest"
LATEST: Final = "latest"
STOP: Final = "stop"
PIN: Final = "pin"

_NAMES: Final = (
    "topic",
    "address",
    "path",
    "columns",
    "startingOffsets",
    "startingTimestamp",
    "endingOffsets",
    "maxOffsetsPerTrigger",
    "maxBytesPerTrigger",
    "minPartitions",
    "failOnDataLoss",
    "failOnOtherRows",
    "groupId",
    "schemaChange",
    "tokenFile",
    "key",
    "txnAppId",
    "txnVersion",
    "topicCreated",
    "topicCluster",
    "timeout",
)
_OURS: Final = {name.lower(): name for name in _NAMES}
_NEAR: Final = 2  # edits that make a name a misspelt one

Start = str | dict[int, int]  # earliest, latest, or an offset for each partition


@dataclass(frozen=True, slots=True)
class Options:
    """What a query says about a topic, checked."""

    topic: str
    address: str | None
    path: str | None
    columns: tuple[str, ...] | None
    starting_offsets: Start | None
    starting_timestamp: str | None
    ending_offsets: Start | None
    row_count_max: int | None
    size_max: int | None
    partition_count_min: int
    fail_on_data_loss: bool
    fail_on_other_rows: bool  # of a sink, under a version that was published before
    group: str | None
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


def parse(given: Mapping[str, str]) -> Options:
    """Read the options of one query. BadConfig names what is wrong."""
    found = {key.lower(): value for key, value in given.items()}
    for key in found:
        if key not in _OURS:
            _refuse_if_near(key)
    taken = _Taken(found)
    options = Options(
        topic=taken.needed("topic"),
        address=taken.text("address"),
        path=taken.text("path"),
        columns=taken.names("columns"),
        starting_offsets=taken.offsets("startingOffsets"),
        starting_timestamp=taken.text("startingTimestamp"),
        ending_offsets=taken.offsets("endingOffsets"),
        row_count_max=taken.count("maxOffsetsPerTrigger"),
        size_max=taken.size("maxBytesPerTrigger"),
        partition_count_min=taken.count("minPartitions") or 1,
        fail_on_data_loss=taken.switch("failOnDataLoss", default=True),
        fail_on_other_rows=taken.switch("failOnOtherRows", default=True),
        group=taken.text("groupId"),
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
    return options


def _check_together(options: Options) -> None:
    if (options.address is None) == (options.path is None):
        flaw = "is not said" if options.address is None else "and path are both said"
        hint = 'Say where the log is: .option("address", "host:port") or .option("path", dir)'
        raise BadConfig("address", flaw, hint=hint)
    if options.ending_offsets == EARLIEST:
        raise BadConfig(
            "endingOffsets",
            f"is {EARLIEST!r}, and nothing is before that",
            hint="Give latest, or an offset for each partition",
        )
    if options.starting_offsets is not None and options.starting_timestamp is not None:
        raise BadConfig(
            "startingOffsets", "and startingTimestamp are both said", hint="Give one of them"
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

    def offsets(self, name: str) -> Start | None:
        value = self.text(name)
        if value is None or value.lower() in (EARLIEST, LATEST):
            return value if value is None else value.lower()
        hint = 'Give earliest, latest, or an offset for each partition: {"0": 10, "1": 7}'
        try:
            pairs = json.loads(value, object_pairs_hook=_Pairs)
        except ValueError:
            pairs = None
        if not isinstance(pairs, _Pairs) or not all(_is_number(key) for key, _ in pairs):
            raise BadConfig(name, f"is {value[:100]!r}", hint=hint)
        found: dict[int, int] = {}
        for key, place in pairs:
            if type(place) is not int:
                raise BadConfig(name, f"has {place!r} for partition {key}", hint=hint)
            if place < 0:
                raise BadConfig(name, "has an offset below 0", hint="Offsets begin with 0")
            if int(key) in found:
                raise BadConfig(name, f"has partition {key} twice", hint=hint)
            found[int(key)] = place
        return found


class _Pairs(list[tuple[str, object]]):
    """A JSON object as it was written: a name may be there twice."""


def _is_number(key: str) -> bool:
    return key.isascii() and key.isdigit() and key == str(int(key))


def _refuse_if_near(key: str) -> None:
    meant = suggestion(key)
    if meant is not None:
        raise BadConfig(key, "is no option", hint=f"Is it {meant}?")


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
