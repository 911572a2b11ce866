"""A topic as the driver sees it: its schema, its bounds, and the spans that tasks read."""

import json
from collections.abc import Collection, Mapping
from contextlib import suppress
from datetime import datetime
from importlib import metadata
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
from headrace.spark.worker.link import LogReplaced
from headrace.spark.worker.read import LogAddress, Span
from headrace.wire.address import SOCKET_NAME

PLAN_TIMEOUT: Final = "10s"  # of one question while something is planned

Said = TypeVar("Said", int, str)


class SchemaChanged(BadRequest):
    """Rows of a newer schema version are next."""


class TopicRecreated(BadRequest):
    """The topic was deleted and made again since the query began."""


class CheckpointAhead(BadRequest):
    """The query has read rows that the log does not have."""

    hint = (
        "The log was put back from an old copy, or it is another one. Rows up to there would "
        "be skipped: begin with a new checkpointLocation"
    )


class RowsLost(BadRequest):
    """Rows were trimmed before the query has read them."""


class TopicSource:
    """One connection of the driver, to one topic."""

    def __init__(self, options: SourceOptions, timeout: str) -> None:
        self.options = options
        self.address = address_of(options)
        self.log = self.another(timeout)
        try:
            self.topic = self.log.topic(options.topic)
        except BaseException:
            self.log.close()
            raise

    def another(self, timeout: str) -> "headrace.Log":
        """Open one more connection to the same log."""
        return headrace.connect(self.address, _token(self.options.token_file), timeout)

    def close(self) -> None:
        self.log.close()

    def schema(self) -> pa.Schema:
        """Return the columns of an answer, the system's too, unless others are asked for."""
        return Projection.of(self.topic.schema, self.options.columns).schema

    @property
    def where(self) -> LogAddress:
        """How executors reach the log."""
        return LogAddress(self.address, self.options.token_file, release(), self.topic.cluster)

    @property
    def version(self) -> int:
        """The newest schema version."""
        return self.topic.core.view.version

    def version_of(self, exact: pa.Schema) -> int:
        """Return the newest schema version that has the columns of a query.

        A query that names no columns has all of one version, and of no other.
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
        """Return what is retained of each partition now."""
        return {each.partition: each for each in self.topic.bounds()}

    def places(self, where: Start | None) -> dict[int, int]:
        """Return the offset of each partition that is meant; the first of one left out."""
        return self._places(where, self.bounds())

    def starts(self) -> dict[int, int]:
        """Return where the options have a query begin."""
        return self._asked(self.options.start, EARLIEST)

    def ranges(self) -> dict[int, tuple[int, int]]:
        """Return what the options have a batch read: start and end in each partition."""
        start, end = self.options.start, self.options.end
        starts, ends = self._asked(start, EARLIEST), self._asked(end, LATEST)
        if self._is_planned:
            return {n: (first, max(first, ends[n])) for n, first in starts.items()}
        for number, first in starts.items():
            if ends[number] < first:
                raise BadConfig(
                    end.option,
                    f"partition {number} ends before row {ends[number]}, and begins with row "
                    f"{first}",
                    hint=f"Give {_more(end, first)}, or an earlier {start.option}",
                )
        return {number: (first, ends[number]) for number, first in starts.items()}

    @property
    def _is_planned(self) -> bool:
        """Whether offsets are those of a plan, which was made for this life of the topic.

        Then a partition that they leave out was made later, and is not read; and an end beyond
        the log's is one that a node which has just restarted does not know again yet.
        """
        return self.options.created is not None

    def _asked(self, edge: Edge, unsaid: str) -> dict[int, int]:
        """Return the offset of each partition that an option means, all of which are there."""
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
        """Return the first row of each partition since its time, or its end."""
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
                    hint="Give an earlier time, or leave startingOffsetsByTimestampStrategy "
                    "out to begin at the end there",
                )
        return found

    def _check_named(
        self, option: str, where: Mapping[int, Said], whole: Mapping[int, Said]
    ) -> None:
        """Refuse what names a partition that is not there, or leaves one out."""
        name, what = self.topic.name, "offset" if option.endswith("Offsets") else "time"
        if strange := set(where) - set(whole):
            flaw = f"{name} has no partition {min(strange)}"
            raise BadConfig(option, flaw, hint=f"It has {len(whole)}, from 0 on")
        if missing := set(whole) - set(where):
            such = json.dumps({str(n): where.get(n, whole[n]) for n in sorted(whole)})
            raise BadConfig(
                option,
                f"has no {what} for partition {min(missing)}: {name} has partitions 0 to "
                f"{max(whole)}",
                hint=f"Name each of them, such as {such}",
            )

    def _check_ends(
        self, option: str, where: Mapping[int, int], bounds: "Mapping[int, headrace.Bounds]"
    ) -> None:
        """Refuse offsets that the log does not have."""
        for number, each in sorted(bounds.items()):
            if where[number] > each.end:
                raise BadConfig(
                    option,
                    f"row {where[number]} of partition {number} is beyond the log's end, which "
                    f"is {each.end}",
                    hint=f"Give {each.end} at most",
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
                hint=f"It has {len(bounds)}, from 0 on",
            )
        return {number: where.get(number, each.first) for number, each in bounds.items()}

    def offsets(
        self, partitions: Mapping[int, int], starts: Mapping[int, int] | None = None
    ) -> Offsets:
        topic = self.topic
        return Offsets(topic.name, topic.created, topic.cluster, dict(partitions), starts)

    def check_life(self) -> None:
        """Look that it is the topic that a plan was made for, if that was said."""
        said, topic = self.options, self.topic
        if said.cluster not in (None, topic.cluster):
            raise LogReplaced(
                f"log {topic.cluster} answers where {said.cluster} was",
                hint="Its rows are others, whatever their offsets: make the table again",
            )
        if said.created not in (None, topic.created):
            raise TopicRecreated(
                f"{topic.name} was deleted and made again since this table was made",
                hint="Its old rows are gone. Make the table again for those of the new topic",
            )

    def check(self, offsets: Offsets) -> dict[int, int]:
        """Return the places in offsets that Spark stored; a new partition begins with 0."""
        self.topic.refresh()
        if offsets.topic != self.topic.name:
            raise BadRequest(
                f"the checkpointLocation is of topic {offsets.topic}, not {self.topic.name}",
                hint="Use another checkpointLocation, or the topic it was made for",
            )
        if offsets.cluster != self.topic.cluster:
            raise LogReplaced(
                f"the checkpointLocation is of log {offsets.cluster}, and {self.address} is "
                f"{self.topic.cluster} now",
                hint="Its rows are others, whatever their offsets. Read it with a new "
                "checkpointLocation",
            )
        if offsets.created != self.topic.created:
            raise TopicRecreated(
                f"{self.topic.name} was deleted and made again since this query began",
                hint="Its old rows are gone. Read the new topic with a new checkpointLocation",
            )
        found, bounds = {}, self.bounds()
        self._refuse_vanished(offsets.partitions, bounds)
        for number, each in bounds.items():
            found[number] = offsets.partitions.get(number, 0)
            if found[number] > each.end:
                raise CheckpointAhead(
                    f"the query goes on at row {found[number]} of partition {number}, "
                    f"the log of {self.topic.name} ends at {each.end}"
                )
        return found

    def _refuse_vanished(self, places: Mapping[int, int], bounds: Collection[int]) -> None:
        """Raise CheckpointAhead if the log has not each partition of which a place is known."""
        for number, place in places.items():
            if number not in bounds:
                raise CheckpointAhead(
                    f"the query goes on at row {place} of partition {number}, "
                    f"the log of {self.topic.name} has {len(bounds)} partitions, from 0 on"
                )

    def backlogs(self, places: Mapping[int, int]) -> dict[int, Backlog]:
        """Return what each partition has beyond its place."""
        found = {}
        for number, each in self.bounds().items():
            row_size = each.size / each.row_count if each.row_count else 0.0
            start = max(places.get(number, 0), 0)
            found[number] = Backlog(start, max(each.end, start), row_size, each.versions)
        return found

    def spans(
        self,
        ranges: Mapping[int, tuple[int, int]],
        exact: pa.Schema,
        version: int,
    ) -> list[Span]:
        """Return what tasks read. Raise RowsLost where some are gone, if that matters."""
        where, view = self.where, self.topic.core.view
        shown = self._shown(version, exact)
        schemas = tuple(
            (number, schema.serialize().to_pybytes()) for number, schema in view.schemas.items()
        )
        count_min, count_max = self.options.partition_count_min, self.options.task_row_count_max
        tasks = split(self._retained(ranges), count_min, count_max)
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
        """Return the version in which rows are shown: the query's, or the newest if pinned."""
        if self.options.schema_change != PIN or version == self.version:
            return version
        newest = self.topic.core.view.schemas[self.version]
        for field in exact:
            place = newest.get_field_index(field.name)
            if place >= 0 and not newest.field(place).type.equals(field.type):
                raise SchemaChanged(
                    f"column {field.name} of {self.topic.name} is {newest.field(place).type} "
                    f"now, and {field.type} in this query",
                    hint="A wider type cannot be pinned. Restart the query to go on",
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
                    f"and would begin at row {start}: the checkpointLocation does not say "
                    "where the query began",
                    hint="Give the offsets at which it began as startingOffsets, or go on "
                    'without its rows with .option("failOnDataLoss", "false")',
                )
            if start >= first or start >= end:
                found[number] = (start, end)
                continue
            if self.options.fail_on_data_loss:
                raise RowsLost(
                    f"rows {start} to {min(first, end) - 1} of partition {number} of "
                    f"{self.topic.name} were trimmed before they were read",
                    hint='Go on without them with .option("failOnDataLoss", "false")',
                )
            found[number] = (min(first, end), end)
        return found


def _more(edge: Edge, first: int) -> str:
    """Return what to give for an end that is before the start."""
    return f"{first} or more" if edge.times is None else "a later time"


def address_of(options: SourceOptions) -> str:
    """Return where the log answers."""
    if options.address is not None:
        return options.address
    assert options.path is not None
    socket = Path(options.path, SOCKET_NAME).absolute()
    if not socket.exists():
        raise Unavailable(
            f"no process holds {options.path}",
            hint=f"Start one: headrace serve --embedded --idle-exit 10m --data {options.path}",
        )
    return f"unix:{socket}"


def release() -> str:
    """Return what this is a release of, for the node's log."""
    with suppress(metadata.PackageNotFoundError):
        return f"spark {metadata.version('headrace')}"
    return "spark"


def _token(path: str | None) -> str | None:
    if path is None:
        return None
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except OSError as error:
        raise BadRequest(f"tokenFile: {error}", hint="Name a file with the token") from error


def _has(schema: pa.Schema, exact: pa.Schema) -> bool:
    """Tell whether all columns are there, in types that differ in missing values at most."""
    places = [schema.get_field_index(field.name) for field in exact]
    return min(places, default=0) >= 0 and all(
        _bare(schema.field(place).type) == _bare(field.type)
        for place, field in zip(places, exact, strict=True)
    )


def _bare(kind: pa.DataType) -> str:
    return str(kind).replace(" not null", "")
