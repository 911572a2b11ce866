"""`headrace pipeline`: load a topic into a Delta table. Defines `check`, `run` and `clean`."""

import signal
import time
import warnings
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.pipelines.pipeline_reset import reset
from headrace.cli.pipelines.pipeline_status import status
from headrace.cli.pipelines.pipeline_stop import stop
from headrace.cli.terminal.location import File, load
from headrace.cli.terminal.output import Json, JsonShape, print_json, say, words

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headrace.spark.pipeline.definition import Definition
    from headrace.spark.pipeline.pipeline import Pipeline, Round
    from headrace.spark.quick_start import QuickStart

Master = Annotated[str, typer.Option(help="Spark master URL.")]
MINUTES_SHOWN = 3  # the least number of minutes that is shown as minutes


class PipelineChecked(JsonShape, frozen=True, kw_only=True):
    """Output of `pipeline check`: what the pipeline would do."""

    name: str
    topic: str
    table: str
    columns: dict[str, str]
    lag: int


class PipelineRan(JsonShape, frozen=True, kw_only=True):
    """Output of `pipeline run`."""

    name: str
    rows: int
    written: int
    files: int
    compacted: int
    rounds: int
    races_lost: int
    version: int | None
    lag: int
    seconds: float


class PipelineCleaned(JsonShape, frozen=True, kw_only=True):
    """Output of `pipeline clean`: the removed files."""

    name: str
    removed: list[str]
    size: int


def register(app: typer.Typer) -> None:
    """Add the commands to `app`."""
    own = typer.Typer(
        help="Load a topic into a Delta table, exactly once.", no_args_is_help=True
    )
    for command in (check, run, status, stop, reset, clean):
        own.command(command.__name__)(command)
    app.add_typer(own, name="pipeline")


def check(file: File, master: Master = "local[*]", as_json: Json = False) -> None:
    """Check whether a pipeline can run: its file, topic, transform and table.

    Example:

        headrace pipeline check orders.toml
    """
    from headrace.spark.pipeline.pipeline import opened

    definition = load(file)
    _look_up(definition)
    with opened(lambda: _spark(master), definition) as pipeline:
        schema = pipeline.check()
        lag = sum(each.row_count for each in pipeline.topic_source.bounds().values())
    answer = PipelineChecked(
        name=definition.name,
        topic=definition.topic,
        table=definition.table,
        columns={field.name: str(field.type) for field in schema},
        lag=lag,
    )
    if as_json:
        print_json(answer)
        return
    typer.echo(f"{answer.name}: {answer.topic} -> {answer.table}")
    for name, kind in answer.columns.items():
        typer.echo(f"  {name}: {kind}")
    say(f"It can run; the topic has {lag:,} rows.")


def run(
    file: File,
    once: Annotated[
        bool, typer.Option("--once", help="Stop once all rows present now are in the table.")
    ] = False,
    master: Master = "local[*]",
    quick_start: Annotated[
        bool,
        typer.Option(
            "--quick-start/--no-quick-start",
            help="With --once and few rows: start Spark faster, with a cache of its classes.",
        ),
    ] = True,
    as_json: Json = False,
) -> None:
    """Run a pipeline until it is stopped, or once. No rows are lost either way.

    Ctrl-C and SIGTERM stop it immediately, `headrace pipeline stop` after its current batch.

    Examples:

        headrace pipeline run orders.toml

        headrace pipeline run orders.toml --once --json
    """
    from headrace.spark.pipeline.pipeline import opened
    from headrace.spark.quick_start import QuickStart

    definition, began = load(file), time.monotonic()
    _look_up(definition)
    rounds: list[Round] = []
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    quick = QuickStart()

    def started() -> "SparkSession":
        return _started(master, pipeline, quick if once and quick_start else None)

    with opened(started, definition) as pipeline, _warnings_said():
        say(f"{definition.name}: {definition.topic} -> {definition.table}")
        pipeline.on_note = say
        try:
            with closing(pipeline.run(once=once)) as running:
                for done in running:
                    rounds.append(done)
                    if not as_json:
                        _tell(done)
            if not once:
                say("stopped by request; the table records where to resume")
        except KeyboardInterrupt:
            say("stopped; the table records where to resume")
        else:
            _save_classes(quick, pipeline)
        if pipeline.flaw:
            say(f"`headrace pipeline status` does not show this run: {pipeline.flaw}")
        lost = pipeline.lost
    if as_json:
        seconds = time.monotonic() - began
        print_json(_ran(definition, rounds, lost, pipeline.compacted, seconds))
    elif not rounds:
        say("nothing new")


def clean(
    file: File,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List the files; remove nothing.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Remove data files that no version of the table references: leftovers of killed runs.

    Safe while the pipeline runs: first a commit without rows makes sure that the files can
    never enter the table. A running driver may lose a round and repeats it.

    Examples:

        headrace pipeline clean orders.toml --dry-run

        headrace pipeline clean orders.toml
    """
    from headrace.spark.source_options import parse
    from headrace.spark.tables.leftovers import orphans_of, removable, remove
    from headrace.spark.tables.table_record import LogSource, look
    from headrace.spark.topic_source import TopicSource

    definition = load(file)
    if dry_run:
        found = orphans_of(definition.location, definition.name)
    else:
        with closing(TopicSource(parse(definition.options), "30s")) as topic_source:
            source = LogSource.reading(definition.name, topic_source.topic)
        record = look(definition.location, source)
        found = removable(record)
        remove(record, found)
    size, names = sum(each.size for each in found), [each.name for each in found]
    if as_json:
        print_json(PipelineCleaned(name=definition.name, removed=names, size=size))
        return
    for name in names:
        typer.echo(name)
    say(f"{'would remove' if dry_run else 'removed'} {len(names)} files, {size:,} bytes")


@contextmanager
def _warnings_said() -> Iterator[None]:
    """Print a warning as a message: where in our code it was raised says nothing to a user."""
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_: say(str(message))
        yield


def _look_up(definition: "Definition") -> None:
    """Check transform, Java and topic before starting Spark, which takes a while."""
    from headrace.spark.pipeline.definition import refuse_missing
    from headrace.spark.source_options import parse
    from headrace.spark.spark_session import find_java
    from headrace.spark.topic_source import TopicSource

    refuse_missing(definition)
    find_java()
    TopicSource(parse(definition.options), "10s").close()


def _started(master: str, pipeline: "Pipeline", quick: "QuickStart | None") -> "SparkSession":
    """Start Spark; with a quick start if there are few rows to bring."""
    from headrace.spark.quick_start import ROWS_MAX

    is_short = quick is not None and pipeline.backlog() <= ROWS_MAX
    return _spark(master, quick if is_short else None)


def _save_classes(quick: "QuickStart", pipeline: "Pipeline") -> None:
    if quick.making is not None:
        with words().status("saving Spark's classes, for faster starts …"):
            quick.finish(pipeline.spark)


def _spark(master: str, quick: "QuickStart | None" = None) -> "SparkSession":
    from headrace.spark import session

    with words().status("starting Spark …"):
        return session("headrace-pipeline", master, quick)


def _tell(done: "Round") -> None:
    rate = done.row_count / max(done.seconds, 1e-9)
    seconds = done.lag / max(rate, 1e-9)
    left = f"{seconds:,.0f} s" if seconds < MINUTES_SHOWN * 60 else f"{seconds / 60:,.0f} min"
    typer.echo(
        f"version {done.version}: rows {done.row_count:,} ({rate:,.0f} per second), "
        f"files {done.file_count}, lag {done.lag:,}"
        + (f", about {left} left" if done.lag else "")
    )


def _ran(
    definition: "Definition", rounds: "list[Round]", lost: int, compacted: int, seconds: float
) -> PipelineRan:
    return PipelineRan(
        name=definition.name,
        rows=sum(one.row_count for one in rounds),
        written=sum(one.written for one in rounds),
        files=sum(one.file_count for one in rounds),
        compacted=compacted,
        rounds=len(rounds),
        races_lost=lost,
        version=rounds[-1].version if rounds else None,
        lag=rounds[-1].lag if rounds else 0,
        seconds=seconds,
    )
