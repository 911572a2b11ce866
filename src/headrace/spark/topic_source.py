"""The driver's view of a topic: its schema, its bounds, and the spans that tasks read."""

import json
import os
import time
from collections.abc import Collection, Mapping
from datetime import datetime
from pathlib import Path
from typing import Final, TypeVar

import pyarrow as pa

import headrace
from headrace.errors import BadConfig, BadRequest, Unavailable
from headrace.model.projection import Projection
from headrace.spark.batch_ranges import Backlog, split
from headrace.spark.query_offsets import Offsets
from headrace.spark.source_options import (
    EARLIEST,
    LATEST,
    PIN,
    Edge,
    SourceOptions,
    Start,
    Times,
)
from headrace.spark.worker.link import LogReplaced, token_here
from headrace.spark.worker.read import LogAddress, Span
from headrace.wire.address import SOCKET_NAME
from headrace.wire.ticket import Ticket

PLAN_TIMEOUT: Final = "10s"  # of one request during planning

Said = TypeVar("Said", int, str)


class SchemaChanged(BadRequest):
    """The next rows have a newer schema version."""


class TopicRecreated(BadRequest):
    """The topic was deleted and recreated since the query began."""


class CheckpointAhead(BadRequest):
    """The query has read rows that the log does not have."""

    hint = (
        "The log was restored from an old backup, or it is a different log. Rows up to there "
        "would be skipped: start with a new checkpointLocation"
    )


class RowsLost(BadRequest):
    """Rows were trimmed before the query read them."""


class TopicSource:
    """The driver's connection to one topic."""

    def __init__(self, options: SourceOptions, timeout: str) -> None:
        self.options = options
        self.address = address_of(options)
        self._token = _token(options.token_file, self.address)
        self.log = self.another(timeout)
        try:
            self.topic = self.log.topic(options.topic)
        except BaseException:
            self.log.close()
            raise

    def another(self, timeout: str) -> "headrace.Log":
        """Open another connection to the same log."""
        return headrace.connect(self.address, self._token, timeout)

    def close(self) -> None:
        self.log.close()

    def schema(self) -> pa.Schema:
        """Return the columns to read: by default all, system columns included."""
        return Projection.of(self.topic.schema, self.options.columns).schema

    @property
    def where(self) -> LogAddress:
        """How executors reach the log. Each call makes a ticket that lasts from now on."""
        ticket = None
        if self._token is not None:
            numbers = [each.namespace for each in self.topic.core.view.info.partitions]
            namespaces = range(min(numbers), max(numbers) + 1)
            ticket = Ticket.made(self._token.encode(), time.time(), namespaces)
        return LogAddress(
            self.address, self.options.token_file, release(), self.topic.cluster, ticket
        )

    @property
    def version(self) -> int:
        """The newest schema version."""
        return self.topic.core.view.version

    def version_of(self, exact: pa.Schema) -> int:
        """Return the newest schema version that has the columns of a query.

        A query that names no columns prefers a version with exactly these columns.
        """
        view = self.topic.core.view
        for version in sorted(view.schemas, reverse=True):
            whole = Projection.of(view.schemas[version], None).schema
            is_whole = self.options.columns is None and len(whole) == len(exact)
            if is_whole and _has(whole, exact):
                return version
        for version in sorted(view.schemas, reverse=True):
            if _has(Projection.of(view.schemas[version], None).schema, exact):
                return version
        raise BadRequest(
            f"{self.topic.name} has no such columns: {', '.join(exact.names)}",
            hint=f"It has {', '.join(self.topic.schema.names)}",
        )

    def bounds(self) -> "dict[int, headrace.Bounds]":
        """Return the rows that each partition retains now."""
        return {each.partition: each for each in self.topic.bounds()}

    def places(self, where: Start | None) -> dict[int, int]:
        """Return the offset of each partition; of one left out, its first."""
        return self._places(where, self.bounds())

    def starts(self) -> dict[int, int]:
        """Return where the query begins, according to its options."""
        return self._asked(self.options.start, EARLIEST)

    def ranges(self) -> dict[int, tuple[int, int]]:
        """Return start and end of a batch in each partition, according to its options."""
        start, end = self.options.start, self.options.end
        starts, ends = self._asked(start, EARLIEST), self._asked(end, LATEST)
        if self._is_planned:
            return {n: (first, max(first, ends[n])) for n, first in starts.items()}
        for number, first in starts.items():
            if ends[number] < first:
                raise BadConfig(
                    end.option,
                    f"partition {number} ends before row {ends[number]}, but begins with row "
                    f"{first}",
                    hint=f"Give {_more(end, first)}, or an earlier {start.option}",
                )
        return {number: (first, ends[number]) for number, first in starts.items()}

    @property
    def _is_planned(self) -> bool:
        """Whether the offsets come from a plan for this life of the topic.

        Then a partition that they leave out was created later, and is not read. An end beyond
        the log's end is one that a node has not recovered yet after a restart.
        """
        return self.options.created is not None

    def _asked(self, edge: Edge, unsaid: str) -> dict[int, int]:
        """Return the offset of each partition that an option gives; it must name them all."""
        if edge.times is not None:
            return self._at(edge, edge.times)
        bounds, where = self.bounds(), unsaid if edge.offsets is None else edge.offsets
        if not isinstance(where, str) and not self._is_planned:
            is_start = edge is self.options.start
            whole = {n: each.first if is_start else each.end for n, each in bounds.items()}
            self._check_named(edge.option, where, whole)
            self._check_ends(edge.option, where, bounds)
        return self._places(where, bounds)

    def _at(self, edge: Edge, times: Times) -> dict[int, int]:
        """Return the first row of each partition at or after its time, or its end."""
        bounds = self.bounds()
        if isinstance(times, datetime):
            times = dict.fromkeys(bounds, times)
        else:
            said = {number: time.isoformat() for number, time in times.items()}
            self._check_named(edge.option, said, dict.fromkeys(bounds, "2026-11-15T10:00Z"))
        by_time = {time: self.topic.offsets_at(time) for time in set(times.values())}
        found = {number: by_time[time][number] for number, time in sorted(times.items())}
        for number, each in self.bounds().items() if edge.is_strict else ():
            if found.get(number) == each.end:
                raise BadConfig(
                    edge.option,
                    f"partition {number} has no row since {times[number].isoformat()}",
                    hint="Give an earlier time, or remove startingOffsetsByTimestampStrategy "
                    "to begin at the end of that partition",
                )
        return found

    def _check_named(
        self, option: str, where: Mapping[int, Said], whole: Mapping[int, Said]
    ) -> None:
        """Refuse offsets or times that name an unknown partition, or leave one out."""
        name, what = self.topic.name, "offset" if option.endswith("Offsets") else "time"
        if strange := set(where) - set(whole):
            flaw = f"{name} has no partition {min(strange)}"
            raise BadConfig(option, flaw, hint=f"It has {len(whole)}, numbered from 0")
        if missing := set(whole) - set(where):
            such = json.dumps({str(n): where.get(n, whole[n]) for n in sorted(whole)})
            raise BadConfig(
                option,
                f"has no {what} for partition {min(missing)}: {name} has partitions 0 to "
                f"{max(whole)}",
                hint=f"List each of them, for example {such}",
            )

    def _check_ends(
        self, option: str, where: Mapping[int, int], bounds: "Mapping[int, headrace.Bounds]"
    ) -> None:
        """Refuse offsets beyond the end of the log."""
        for number, each in sorted(bounds.items()):
            if where[number] > each.end:
                raise BadConfig(
                    option,
                    f"row {where[number]} of partition {number} is beyond the end of the log, "
                    f"which is {each.end}",
                    hint=f"Give at most {each.end}",
                )

    def _places(
        self, where: Start | None, bounds: "Mapping[int, headrace.Bounds]"
    ) -> dict[int, int]:
        if where is None or where == EARLIEST:
            return {number: each.first for number, each in bounds.items()}
        if where == LATEST:
            return {number: each.end for number, each in bounds.items()}
        assert not isinstance(where, str)
        strange = set(where) - set(bounds)
        if strange:
            raise BadRequest(
                f"{self.topic.name} has no partition {min(strange)}",
                hint=f"It has {len(bounds)}, numbered from 0",
            )
        return {number: where.get(number, each.first) for number, each in bounds.items()}

    def offsets(
        self, partitions: Mapping[int, int], starts: Mapping[int, int] | None = None
    ) -> Offsets:
        topic = self.topic
        return Offsets(topic.name, topic.created, topic.cluster, dict(partitions), starts)

    def check_life(self) -> None:
        """Check that this is the topic that the plan was made for, if the options name one."""
        said, topic = self.options, self.topic
        if said.cluster not in (None, topic.cluster):
            raise LogReplaced(
                f"expected log {said.cluster}, found log {topic.cluster}",
                hint="This is a different log, so its offsets do not match. Recreate the table",
            )
        if said.created not in (None, topic.created):
            raise TopicRecreated(
                f"{topic.name} was deleted and recreated since this table was created",
                hint="Its old rows are deleted. Recreate the table to read the new topic",
            )

    def check(self, offsets: Offsets) -> dict[int, int]:
        """Return the positions that Spark stored. A new partition begins at 0."""
        self.topic.refresh()
        if offsets.topic != self.topic.name:
            raise BadRequest(
                f"the checkpointLocation belongs to topic {offsets.topic}, not "
                f"{self.topic.name}",
                hint="Use another checkpointLocation, or the topic it was created for",
            )
        if offsets.cluster != self.topic.cluster:
            raise LogReplaced(
                f"the checkpointLocation belongs to log {offsets.cluster}, but {self.address} "
                f"is now log {self.topic.cluster}",
                hint="This is a different log, so its offsets do not match. Read it with a new "
                "checkpointLocation",
            )
        if offsets.created != self.topic.created:
            raise TopicRecreated(
                f"{self.topic.name} was deleted and recreated since this query began",
                hint="Its old rows are deleted. Read the new topic with a new "
                "checkpointLocation",
            )
        found, bounds = {}, self.bounds()
        self._refuse_vanished(offsets.partitions, bounds)
        for number, each in bounds.items():
            found[number] = offsets.partitions.get(number, 0)
            if found[number] > each.end:
                raise CheckpointAhead(
                    f"the query resumes at row {found[number]} of partition {number}, "
                    f"but the log of {self.topic.name} ends at {each.end}"
                )
        return found

    def _refuse_vanished(self, places: Mapping[int, int], bounds: Collection[int]) -> None:
        """Raise CheckpointAhead if the log lacks a partition that has a position."""
        for number, place in places.items():
            if number not in bounds:
                raise CheckpointAhead(
                    f"the query resumes at row {place} of partition {number}, but the log of "
                    f"{self.topic.name} has {len(bounds)} partitions, numbered from 0"
                )

    def backlogs(
        self,
        places: Mapping[int, int],
        bounds: "Mapping[int, headrace.Bounds] | None" = None,
    ) -> dict[int, Backlog]:
        """Return the rows of each partition after its position."""
        found = {}
        for number, each in (self.bounds() if bounds is None else bounds).items():
            row_size = each.size / each.row_count if each.row_count else 0.0
            start = max(places.get(number, 0), 0)
            found[number] = Backlog(start, max(each.end, start), row_size, each.versions)
        return found

    def spans(
        self,
        ranges: Mapping[int, tuple[int, int]],
        exact: pa.Schema,
        version: int,
        count_min: int | None = None,
    ) -> list[Span]:
        """Return what tasks read. Raises RowsLost for trimmed rows unless that is allowed.

        There are at least `count_min` tasks, if there are rows; by default as the options say.
        """
        where, view = self.where, self.topic.core.view
        shown = self._shown(version, exact)
        schemas = tuple(
            (number, schema.serialize().to_pybytes()) for number, schema in view.schemas.items()
        )
        if count_min is None:
            count_min = self.options.partition_count_min
        tasks = split(self._retained(ranges), count_min, self.options.task_row_count_max)
        return [
            Span(
                where=where,
                topic=self.topic.name,
                partition=number,
                namespace=view.partition(number).namespace,
                created=view.partition(number).created,
                start=start,
                end=end,
                version=shown,
                schemas=schemas,
                exact=exact.serialize().to_pybytes(),
            )
            for number, start, end in tasks
        ]

    def _shown(self, version: int, exact: pa.Schema) -> int:
        """Return the version to convert rows to: the query's, or the newest if pinned."""
        if self.options.schema_change != PIN or version == self.version:
            return version
        newest = self.topic.core.view.schemas[self.version]
        for field in exact:
            place = newest.get_field_index(field.name)
            if place >= 0 and not newest.field(place).type.equals(field.type):
                raise SchemaChanged(
                    f"column {field.name} of {self.topic.name} is now "
                    f"{newest.field(place).type}, but {field.type} in this query",
                    hint="A wider type cannot be pinned. Restart the query to continue",
                )
        return self.version

    def _retained(self, ranges: Mapping[int, tuple[int, int]]) -> dict[int, tuple[int, int]]:
        bounds, found = self.bounds(), {}
        self._refuse_vanished({number: end for number, (_, end) in ranges.items()}, bounds)
        for number, (start, end) in ranges.items():
            first = bounds[number].first
            if start > end and self.options.fail_on_data_loss:
                raise RowsLost(
                    f"the batch ends at row {end} of partition {number} of {self.topic.name}, "
                    f"but would begin at row {start}: the checkpointLocation does not record "
                    "where the query began",
                    hint="Give the offsets at which it began as startingOffsets, or continue "
                    'without its rows with .option("failOnDataLoss", "false")',
                )
            if start >= first or start >= end:
                found[number] = (start, end)
                continue
            if self.options.fail_on_data_loss:
                raise RowsLost(
                    f"rows {start} to {min(first, end) - 1} of partition {number} of "
                    f"{self.topic.name} were trimmed before they were read",
                    hint='Continue without them with .option("failOnDataLoss", "false")',
                )
            found[number] = (min(first, end), end)
        return found


def _more(edge: Edge, first: int) -> str:
    """Return what to give in place of an end before the start."""
    return f"{first} or more" if edge.times is None else "a later time"


def address_of(options: SourceOptions) -> str:
    """Return the address of the log."""
    if options.address is not None:
        return options.address
    assert options.path is not None
    socket = Path(options.path, SOCKET_NAME).absolute()
    if not socket.exists():
        raise Unavailable(
            f"no process serves {options.path}",
            hint=f"Start one: headrace serve --embedded --idle-exit 10m --data {options.path}",
        )
    return f"unix:{socket}"


def release() -> str:
    """Return the name and version of this client, for the node's log."""
    return f"spark {headrace.__version__}"


def _token(path: str | None, address: str) -> str | None:
    """Return the driver's token: of the option, or of its environment, except for a socket."""
    if path is not None:
        try:
            return Path(path).read_text(encoding="utf-8").strip()
        except OSError as error:
            raise BadRequest(
                f"tokenFile: {error}", hint="Give a file that contains the token"
            ) from error
    found = None if address.startswith("unix:") else token_here(None, os.environ)
    return None if found is None else found.decode()


def _has(schema: pa.Schema, exact: pa.Schema) -> bool:
    """Whether a schema has all columns, with types that differ in nullability at most."""
    places = [schema.get_field_index(field.name) for field in exact]
    return min(places, default=0) >= 0 and all(
        _bare(schema.field(place).type) == _bare(field.type)
        for place, field in zip(places, exact, strict=True)
    )


def _bare(kind: pa.DataType) -> str:
    return str(kind).replace(" not null", "")
