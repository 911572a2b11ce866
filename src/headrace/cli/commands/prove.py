"""`headrace prove`: does a table hold what the log holds, row for row?"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import headrace
from headrace.cli.terminal.exits import Exit, NotFound
from headrace.cli.terminal.location import TIMEOUT, Address, Data, Timeout, opened
from headrace.cli.terminal.output import Json, JsonShape, print_json, say, words
from headrace.errors import BadRequest
from headrace.model.namespace import parse_topic

if TYPE_CHECKING:
    from headrace.spark.prove.prove import Proof
    from headrace.spark.tables.table_record import LogSource, Record

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.spark.tables.table_record import Record


Line = tuple[int, int, int]  # partition, start and end of one append


def lines_of(ledgers: Iterable[Path], topic: "headrace.Topic") -> Iterable[Line]:
    """Give partition, start and end of every append that ledgers name. A cut line is none."""
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
                say(f"{path}, line {number}: not a line of a ledger, left out")
        if older:
            say(f"{path}: {older:,} appends to an earlier {topic.name}, left out")


def lost(lines: Iterable[Line], topic: "headrace.Topic") -> int:
    """Count the rows of ledgers that the log does not have."""
    ends = {each.partition: each.end for each in topic.bounds()}
    return sum(max(0, end - max(start, ends.get(number, 0))) for number, start, end in lines)


def waiting(lines: Iterable[Line], topic: "headrace.Topic", record: "Record") -> int:
    """Count the rows of ledgers that the log has, and that the table does not record."""
    ends = {each.partition: each.end for each in topic.bounds()}
    found = 0
    for number, start, end in lines:
        known = max(start, min(end, ends.get(number, 0)))
        ranges = record.ranges(number) if number in record.ends else []
        brought = (max(0, min(known, stop) - max(start, first)) for first, stop in ranges)
        found += known - start - sum(brought)
    return found


class ProofFinding(JsonShape, frozen=True, kw_only=True):
    """Rows of one partition, and what is wrong with them."""

    kind: str
    partition: int
    start: int
    end: int
    note: str


class ProofAnswer(JsonShape, frozen=True, kw_only=True):
    """What `headrace prove` found."""

    holds: bool
    grade: str
    topic: str
    table: str
    version: int
    acknowledged: int | None  # rows that the ledgers name; null without a ledger
    in_log: int
    in_table: int  # rows that were judged: with --own-only without those of others
    compared: int
    not_compared: int
    skipped: int  # rows that `pipeline reset` has left out
    behind: int  # rows that the log has behind what the table records: not brought yet
    ahead: int  # rows that the table records behind the log's end
    columns: list[str]
    columns_not_compared: list[str]  # of other types in the table: nothing is claimed
    columns_absent: list[str]  # of the topic, and not in the table
    missing: int
    duplicated: int
    changed: int
    foreign: int
    lost: int  # rows that a ledger names and the log does not have
    waiting: int  # rows that a ledger names and the log has, and the table does not record
    findings: list[ProofFinding]


@dataclass(frozen=True, slots=True)
class _Missed:
    """Rows that were acknowledged, and that the log, or the table, does not have."""

    lost: int
    waiting: int


def register(app: typer.Typer) -> None:
    """Put the command on `app`."""
    app.command("prove")(prove)


def prove(
    topic: Annotated[str, typer.Argument(help="The topic that the table was filled from.")],
    table: Annotated[Path, typer.Option(help="The Delta table.", exists=True)],
    pipeline: Annotated[
        str | None, typer.Option(help="Its pipeline, if the table is of several.")
    ] = None,
    ledger: Annotated[
        list[Path] | None,
        typer.Option(help="What a producer wrote down as acknowledged; may be repeated."),
    ] = None,
    recompute: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="The pipeline's file: run its transform again, on Spark, and compare rows.",
        ),
    ] = None,
    own_only: Annotated[
        bool,
        typer.Option(
            "--own-only", help="Judge the pipeline's rows alone: rows of others may be there."
        ),
    ] = False,
    data: Data = None,
    address: Address = None,
    timeout: Timeout = TIMEOUT,
    as_json: Json = False,
) -> None:
    """Show that log and table agree: each row once, nothing changed, nothing foreign.

    Exits with 0 if that holds, with 6 if it does not, and with 7 if it cannot be shown. A table
    whose transform leaves rows out, or keeps no lineage, is proven with --recompute.

    Examples:

        headrace prove shop/orders --table ./tables/orders --data ./data

        headrace prove shop/orders --table ./tables/orders --address 127.0.0.1:7654 --json

        headrace prove shop/orders --table ./tables/orders --data ./data --ledger orders.ledger

        headrace prove shop/orders --table ./tables/orders --recompute orders.toml
    """
    from headrace.spark.tables.table_record import LogSource, look

    with opened(data, address, timeout) as log:
        found = log.topic(topic)
        source = LogSource.reading(_pipeline(table, pipeline), found)
        lines = list(lines_of(ledger or [], found))
        query, proof = _of_query(table, source)
        not_brought = 0
        if proof is None:
            record = look(str(table.absolute()), source)
            proof = _compared(found, record, recompute, own_only=own_only)
            not_brought = waiting(lines, found, record)
        missed = _Missed(lost(lines, found), not_brought)
    acknowledged = sum(end - start for _, start, end in lines) if ledger else None
    answer = _answer(proof, found.name, table, acknowledged, missed)
    _tell(answer, query, as_json=as_json)
    raise typer.Exit(_exit(proof, missed))


def _of_query(table: Path, source: "LogSource") -> "tuple[str, Proof | None]":
    """Return the streaming query that fills a table, of which nothing can be shown then."""
    from headrace.spark.prove.prove import Grade, Proof
    from headrace.spark.tables.table_record import QUERY, own_table

    found = own_table(str(table.absolute()), source)
    told: str = found.metadata().configuration[source.mark]
    if not told.startswith(QUERY):
        return "", None
    return told, Proof(Grade.NOT_PROVABLE, found.version())


def _compared(
    topic: "headrace.Topic", record: "Record", recompute: Path | None, *, own_only: bool
) -> "Proof":
    from headrace.spark.prove.prove import prove as compare

    if own_only and recompute is not None:
        raise BadRequest(
            "--own-only needs each row's place in the log, which --recompute does not use",
            hint="Leave out one of both",
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
            f"{file} is of pipeline {definition.name!r} and topic {definition.topic!r}, "
            f"the table of {expected[0]!r} and {expected[1]!r}",
            hint="Name the file that the table was filled by",
        )
    with words().status("starting Spark …") as status:
        spark = session("headrace prove")
        status.update("running the transform again …")
        with pipeline_of(spark, definition) as pipeline:
            return recompute(pipeline, record)


def _exit(proof: "Proof", missed: _Missed) -> Exit:
    if missed.lost or proof.ahead:  # which the log shows, whatever can be said of the table
        return Exit.INTEGRITY
    if proof.grade == "not provable":
        return Exit.NOT_SHOWN
    if proof.is_wrong:
        return Exit.INTEGRITY
    return Exit.OK if proof.holds and not missed.waiting else Exit.NOT_SHOWN


def _pipeline(table: Path, given: str | None) -> str:
    from headrace.spark.tables.table_record import pipelines_of

    if given is not None:
        return given
    found = pipelines_of(str(table.absolute()))
    if len(found) == 1:
        return found[0]
    if not found:
        raise NotFound(f"the table at {table} was made by no pipeline of Headrace")
    raise BadRequest(
        f"the table at {table} is of several pipelines: {', '.join(found)}",
        hint="Choose one with --pipeline",
    )


def _answer(
    proof: "Proof",
    topic: str,
    table: Path,
    acknowledged: int | None,
    missed: _Missed,
) -> ProofAnswer:
    return ProofAnswer(
        holds=proof.holds and not missed.lost and not missed.waiting,
        grade=str(proof.grade),
        topic=topic,
        table=str(table),
        version=proof.version,
        acknowledged=acknowledged,
        in_log=proof.in_log,
        in_table=proof.in_table,
        compared=proof.compared,
        not_compared=proof.not_compared,
        skipped=proof.skipped,
        behind=proof.behind,
        ahead=proof.ahead,
        columns=list(proof.columns),
        columns_not_compared=list(proof.unlike),
        columns_absent=list(proof.absent),
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
        return f"{query} fills the table, whose rows do not say where they come from"
    if answer.not_compared:
        return f"{answer.not_compared:,} rows were trimmed from the log"
    if answer.columns:
        return "the transform makes other rows each time"
    return "the table's rows do not say where they come from (no lineage); try --recompute"


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
    """Say which rows and columns the numbers above say nothing about."""
    if answer.lost:
        typer.echo(f"  lost: {answer.lost:,} rows that a ledger names are not in the log")
    if answer.waiting:
        yet = "" if answer.skipped else " yet"  # what was skipped does not come
        typer.echo(f"  acknowledged, not in the table{yet}: {answer.waiting:,} rows")
    if answer.ahead:
        typer.echo(f"  ahead of the log: {answer.ahead:,} rows that the table records")
        say("the log was put back from an old copy, or it is another one")
    if answer.skipped:
        typer.echo(f"  skipped by reset: {answer.skipped:,} rows of the log")
    if answer.behind:
        typer.echo(f"  behind that, not brought yet: {answer.behind:,} rows of the log")
    if answer.columns_not_compared:
        names = ", ".join(answer.columns_not_compared)
        typer.echo(f"  not compared, as log and table have them differently: {names}")
    if answer.columns_absent:
        names = ", ".join(answer.columns_absent)
        say(f"columns of the topic that the table does not have: {names}")
