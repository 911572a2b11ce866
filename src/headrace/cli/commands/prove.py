"""`headrace prove`: compare a table with its log, row by row."""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import headrace
from headrace.cli.terminal.exits import Exit, NotFound
from headrace.cli.terminal.location import (
    TIMEOUT,
    Address,
    Data,
    StoreSettings,
    Timeout,
    location_at,
    opened,
)
from headrace.cli.terminal.output import Json, JsonShape, print_json, say, words
from headrace.errors import BadRequest
from headrace.model.namespace import parse_topic

if TYPE_CHECKING:
    from headrace.spark.prove.prove import Proof
    from headrace.spark.stores.location import Location
    from headrace.spark.tables.table_record import LogSource, Record

Line = tuple[int, int, int]  # partition, start and end of one append


def lines_of(ledgers: Iterable[Path], topic: "headrace.Topic") -> Iterable[Line]:
    """Yield partition, start and end of every append in the ledgers. Ignores a cut line."""
    lives = dict(enumerate(each.created for each in topic.core.view.info.partitions))
    for path in ledgers:
        try:
            text = path.read_bytes().decode(errors="replace")
        except OSError as error:
            raise NotFound(f"{path} cannot be read: {error.strerror}") from error
        older = 0
        for number, line in enumerate(text.split("\n")[:-1], 1):
            try:
                found = json.loads(line)
                if found["topic"] != topic.name:
                    continue
                place = int(found["partition"])
                if found["created"] == lives.get(place):
                    yield place, int(found["start"]), int(found["end"])
                else:
                    older += 1
            except (ValueError, KeyError, TypeError):
                say(f"{path}, line {number}: not a ledger line, ignored")
        if older:
            say(f"{path}: {older:,} appends to an earlier {topic.name}, ignored")


def lost(lines: Iterable[Line], topic: "headrace.Topic") -> int:
    """Count the rows in the ledgers that are not in the log."""
    ends = {each.partition: each.end for each in topic.bounds()}
    return sum(max(0, end - max(start, ends.get(number, 0))) for number, start, end in lines)


def waiting(lines: Iterable[Line], topic: "headrace.Topic", record: "Record") -> int:
    """Count the rows in the ledgers that the log has and the table does not record."""
    ends = {each.partition: each.end for each in topic.bounds()}
    found = 0
    for number, start, end in lines:
        known = max(start, min(end, ends.get(number, 0)))
        ranges = record.ranges(number) if number in record.ends else []
        brought = (max(0, min(known, stop) - max(start, first)) for first, stop in ranges)
        found += known - start - sum(brought)
    return found


class ProofFinding(JsonShape, frozen=True, kw_only=True):
    """Rows of one partition and their mismatch."""

    kind: str
    partition: int
    start: int
    end: int
    note: str


class ProofAnswer(JsonShape, frozen=True, kw_only=True):
    """Output of `headrace prove`."""

    holds: bool
    grade: str
    topic: str
    table: str
    version: int
    acknowledged: int | None  # rows in the ledgers; null without a ledger
    in_log: int
    in_table: int  # rows that were judged: with --own-only, only the pipeline's own
    compared: int
    compared_by_digest: int  # of these: in files that are segments of the log, byte for byte
    not_compared: int
    skipped: int  # rows that `pipeline reset` skipped
    behind: int  # rows of the log past those that the table records: not loaded yet
    ahead: int  # rows that the table records past the log's end
    columns: list[str]
    columns_not_compared: list[str]  # their types differ in the table: nothing is claimed
    columns_absent: list[str]  # in the topic, but not in the table
    columns_extra: list[str]  # in the table, but not in the topic: there is nothing to compare
    missing: int
    duplicated: int
    changed: int
    foreign: int
    lost: int  # rows in a ledger, but not in the log
    waiting: int  # rows in a ledger and in the log that the table does not record
    findings: list[ProofFinding]


@dataclass(frozen=True, slots=True)
class _Missed:
    """Acknowledged rows that are missing from the log or from the table."""

    lost: int
    waiting: int


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command("prove")(prove)


def prove(
    topic: Annotated[str, typer.Argument(help="The topic that the table was filled from.")],
    table: Annotated[
        str, typer.Option(help="The Delta table: a path, or a URL such as s3://bucket/orders.")
    ],
    pipeline: Annotated[
        str | None, typer.Option(help="The pipeline, if several write to the table.")
    ] = None,
    ledger: Annotated[
        list[Path] | None,
        typer.Option(help="A producer's ledger of acknowledged rows; may be repeated."),
    ] = None,
    recompute: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="The pipeline's file: rerun its transform on Spark and compare the rows.",
        ),
    ] = None,
    own_only: Annotated[
        bool,
        typer.Option(
            "--own-only", help="Judge only the pipeline's own rows, and allow foreign ones."
        ),
    ] = False,
    store: StoreSettings = None,
    data: Data = None,
    address: Address = None,
    timeout: Timeout = TIMEOUT,
    as_json: Json = False,
) -> None:
    """Prove that log and table agree: each row once, none changed, none foreign.

    Exits with 0 if that holds, with 6 if it does not, and with 7 if it cannot be shown. Use
    --recompute for a table whose transform drops rows or keeps no lineage.

    Examples:

        headrace prove shop/orders --table ./tables/orders --data ./data

        headrace prove shop/orders --table ./tables/orders --address 127.0.0.1:7654 --json

        headrace prove shop/orders --table ./tables/orders --data ./data --ledger orders.ledger

        headrace prove shop/orders --table ./tables/orders --recompute orders.toml

        headrace prove shop/orders --table s3://lake/orders --store region=eu-central-1
    """
    location = location_at(table, store)
    with opened(data, address, timeout) as log:
        found = log.topic(topic)
        source = _source(location, pipeline, found)
        lines = list(lines_of(ledger or [], found))
        compare = partial(_compared, recompute=recompute, own_only=own_only)
        query, proof, not_brought = _judged(found, source, location, lines, compare)
        missed = _Missed(lost(lines, found), not_brought)
    acknowledged = sum(end - start for _, start, end in lines) if ledger else None
    answer = _answer(proof, found.name, table, acknowledged, missed)
    _tell(answer, query, as_json=as_json)
    raise typer.Exit(_exit(proof, missed))


def _judged(
    topic: "headrace.Topic",
    source: "LogSource",
    table: "Location",
    lines: list[Line],
    compare: "Callable[[headrace.Topic, Record], Proof]",
) -> "tuple[str, Proof, int]":
    """Return the query that fills the table, if any, the proof, and rows that are waiting.

    Nothing can be proven for a query.
    """
    from headrace.spark.prove.prove import Grade, Proof
    from headrace.spark.tables.table_record import QUERY, look, own_table

    found = own_table(table, source)
    told: str = found.metadata().configuration[source.mark]
    if told.startswith(QUERY):
        return told, Proof(Grade.NOT_PROVABLE, found.version()), 0
    record = look(table, source)
    return "", compare(topic, record), waiting(lines, topic, record)


def _compared(
    topic: "headrace.Topic", record: "Record", *, recompute: Path | None, own_only: bool
) -> "Proof":
    from headrace.spark.prove.prove import prove as compare

    if own_only and recompute is not None:
        raise BadRequest(
            "--own-only needs each row's place in the log, which --recompute does not use",
            hint="Omit one of them",
        )
    if recompute is not None:
        return _recomputed(record, recompute)
    with words().status("comparing …") as status:
        for proof in compare(topic, record, own_only=own_only):
            status.update(f"comparing: {proof.compared:,} rows")
    return proof


def _recomputed(record: "Record", file: Path) -> "Proof":
    from headrace.spark import session
    from headrace.spark.pipeline.definition import load
    from headrace.spark.pipeline.pipeline import opened as pipeline_of
    from headrace.spark.prove.recompute import recompute

    definition = load(file)
    expected = (record.source.pipeline, record.source.topic)
    if (definition.name, str(parse_topic(definition.topic))) != expected:
        raise BadRequest(
            f"{file} is for pipeline {definition.name!r} and topic {definition.topic!r}, "
            f"but the table is for {expected[0]!r} and {expected[1]!r}",
            hint="Give the file of the pipeline that filled the table",
        )
    with words().status("starting Spark …") as status:
        spark = session("headrace prove")
        status.update("rerunning the transform …")
        with pipeline_of(spark, definition) as pipeline:
            return recompute(pipeline, record)


def _exit(proof: "Proof", missed: _Missed) -> Exit:
    if missed.lost or proof.ahead:  # the log alone shows it, whatever the table holds
        return Exit.INTEGRITY
    if proof.grade == "not provable":
        return Exit.NOT_SHOWN
    if proof.is_wrong:
        return Exit.INTEGRITY
    return Exit.OK if proof.holds and not missed.waiting else Exit.NOT_SHOWN


def _source(table: "Location", pipeline: str | None, topic: "headrace.Topic") -> "LogSource":
    from headrace.spark.tables.table_record import LogSource

    return LogSource.reading(_pipeline(table, pipeline), topic)


def _pipeline(table: "Location", given: str | None) -> str:
    from headrace.spark.tables.table_record import pipelines_of

    if given is not None:
        return given
    found = pipelines_of(table)
    if len(found) == 1:
        return found[0]
    if not found:
        raise NotFound(f"no Headrace pipeline wrote the table at {table.url}")
    raise BadRequest(
        f"several pipelines write to the table at {table.url}: {', '.join(found)}",
        hint="Choose one with --pipeline",
    )


def _answer(
    proof: "Proof",
    topic: str,
    table: str,
    acknowledged: int | None,
    missed: _Missed,
) -> ProofAnswer:
    return ProofAnswer(
        holds=proof.holds and not missed.lost and not missed.waiting,
        grade=str(proof.grade),
        topic=topic,
        table=table,
        version=proof.version,
        acknowledged=acknowledged,
        in_log=proof.in_log,
        in_table=proof.in_table,
        compared=proof.compared,
        compared_by_digest=proof.by_digest,
        not_compared=proof.not_compared,
        skipped=proof.skipped,
        behind=proof.behind,
        ahead=proof.ahead,
        columns=list(proof.columns),
        columns_not_compared=list(proof.unlike),
        columns_absent=list(proof.absent),
        columns_extra=list(proof.extra),
        **{str(kind): count for kind, count in proof.counts.items()},
        lost=missed.lost,
        waiting=missed.waiting,
        findings=[
            ProofFinding(
                kind=str(one.kind),
                partition=one.partition,
                start=one.start,
                end=one.end,
                note=one.note,
            )
            for one in proof.findings
        ],
    )


def _why(answer: ProofAnswer, query: str) -> str:
    if query:
        return f"{query} fills the table, whose rows have no lineage"
    if answer.not_compared:
        return f"{answer.not_compared:,} rows were trimmed from the log"
    if answer.columns:
        return "the transform is not deterministic: it returns different rows each time"
    return "the table's rows have no lineage; try --recompute"


def _tell(answer: ProofAnswer, query: str, *, as_json: bool) -> None:
    if as_json:
        print_json(answer)
        return
    if answer.grade == "not provable":
        _tell_findings(answer)
        _tell_left_out(answer)
        say(f"not provable: {_why(answer, query)}")
        return
    _tell_rows(answer)
    if answer.compared_by_digest:
        typer.echo(f"  compared by the digests of files: {answer.compared_by_digest:,} rows")
    _tell_left_out(answer)
    if answer.not_compared:
        say(f"{answer.not_compared:,} rows were trimmed from the log: not compared")
    say(f"grade: {answer.grade}; columns compared: {', '.join(answer.columns) or 'none'}")


def _tell_rows(answer: ProofAnswer) -> None:
    told = [] if answer.acknowledged is None else [f"{answer.acknowledged:,} acknowledged"]
    there = " up to there" if answer.behind else ""
    told += [f"{answer.in_log:,} in the log{there}", f"{answer.in_table:,} in the table"]
    is_equal = len({part.split()[0] for part in told}) == 1 and not answer.skipped
    sign = " = " if is_equal else ", "
    print_line = f"{sign.join(told)} at version {answer.version}"
    counts = f"{answer.missing:,} missing, {answer.duplicated:,} duplicated, "
    counts += f"{answer.changed:,} changed, {answer.foreign:,} foreign"
    typer.echo(f"{print_line}; {counts}")
    _tell_findings(answer)


def _tell_findings(answer: ProofAnswer) -> None:
    for one in answer.findings:
        where = f"partition {one.partition}, rows {one.start} to {one.end - 1}"
        place = where if one.partition >= 0 else "no place in the log"
        typer.echo(f"  {one.kind}: {place}" + (f", {one.note}" if one.note else ""))


def _tell_left_out(answer: ProofAnswer) -> None:
    """Print the rows and columns that the numbers above do not cover."""
    if answer.lost:
        typer.echo(f"  lost: {answer.lost:,} rows in a ledger are not in the log")
    if answer.waiting:
        yet = "" if answer.skipped else " yet"  # skipped rows do not come
        typer.echo(f"  acknowledged, not in the table{yet}: {answer.waiting:,} rows")
    if answer.ahead:
        typer.echo(f"  ahead of the log: {answer.ahead:,} rows that the table records")
        say("the log was restored from an old backup, or it is a different log")
    if answer.skipped:
        typer.echo(f"  skipped by reset: {answer.skipped:,} rows of the log")
    if answer.behind:
        typer.echo(f"  after that, not loaded yet: {answer.behind:,} rows of the log")
    if answer.columns_not_compared:
        names = ", ".join(answer.columns_not_compared)
        typer.echo(f"  not compared, their types differ in log and table: {names}")
    if answer.columns_absent:
        names = ", ".join(answer.columns_absent)
        say(f"columns of the topic that the table lacks: {names}")
    if answer.columns_extra:
        names = ", ".join(answer.columns_extra)
        say(f"columns of the table that the topic lacks, not compared: {names}")
