"""`headrace pipeline stop`: ask drivers on any machine to stop after their current batch."""

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

import headrace
from headrace.cli.pipelines.pipeline_status import lines_of
from headrace.cli.terminal.exits import NotFound
from headrace.cli.terminal.location import Address, Data, load, opened
from headrace.cli.terminal.output import Json, JsonShape, print_json, say, words
from headrace.client.values.parse import duration
from headrace.errors import BadRequest, TimedOut

if TYPE_CHECKING:
    from headrace.spark.pipeline.driver_reports import Report

LOOK_SECONDS: Final = 0.5
STOP_TIMEOUT: Final = "120s"
_CALL_TIMEOUT: Final = "30s"  # of one request to the log


class DriverStopped(JsonShape, frozen=True, kw_only=True):
    """One driver that was asked to stop, and how it ended."""

    topic: str
    host: str
    pid: int
    state: str  # stopped; failed or silent, if that happened first
    rows: int  # that it has loaded


class PipelineStopped(JsonShape, frozen=True, kw_only=True):
    """Output of `pipeline stop`. `drivers` is empty if none was running."""

    name: str
    drivers: list[DriverStopped]
    seconds: float


def stop(
    pipeline: Annotated[
        str, typer.Argument(metavar="FILE|NAME", help="The pipeline's TOML file, or its name.")
    ],
    data: Data = None,
    address: Address = None,
    timeout: Annotated[
        str, typer.Option(metavar="TIME", help="How long to wait for it to stop.")
    ] = STOP_TIMEOUT,
    as_json: Json = False,
) -> None:
    """Stop a running pipeline after its current batch, on whatever machine it runs, and wait.

    Asks all of its drivers. No rows are lost: the table records where to resume. If no driver
    runs, the command says so and does nothing.

    Examples:

        headrace pipeline stop orders.toml

        headrace pipeline stop orders --address 127.0.0.1:7654 --timeout 10m

        headrace pipeline stop orders.toml --json | jq '.drivers[].state'
    """
    began, most = time.monotonic(), duration(timeout, "--timeout").seconds
    with _found(pipeline, data, address) as (log, name, topic):
        asked = _asked(log, name, topic)
        with words().status(f"waiting for {name} to finish its batch …"):
            ended = list(_ended(log, asked, began + most, timeout))
    if as_json:
        seconds = time.monotonic() - began
        print_json(PipelineStopped(name=name, drivers=ended, seconds=seconds))
        return
    if not ended:
        say(f"{name} is not running.")
    for one in ended:
        say(f"{name} on {one.host}, process {one.pid}: {one.state}, rows {one.rows:,}")


@contextmanager
def _found(
    pipeline: str, data: Path | None, address: str | None
) -> Iterator[tuple[headrace.Log, str, str | None]]:
    """Yield the log, the pipeline's name, and its topic if a file names it."""
    if data is None and address is None and (Path(pipeline).is_file() or _is_path(pipeline)):
        from headrace.spark.source_options import parse
        from headrace.spark.topic_source import TopicSource

        definition = load(Path(pipeline))
        with closing(TopicSource(parse(definition.options), _CALL_TIMEOUT)) as topic_source:
            yield topic_source.log, definition.name, topic_source.topic.name
        return
    if _is_path(pipeline):
        raise BadRequest(
            f"{pipeline} is a file, which already names the log",
            hint="Omit --data and --address, or give the pipeline's name",
        )
    with opened(data, address, _CALL_TIMEOUT) as log:
        yield log, pipeline, None


def _is_path(text: str) -> bool:
    return text.endswith(".toml") or "/" in text


def _asked(log: headrace.Log, name: str, topic: str | None) -> "list[Report]":
    """Ask every running driver to stop, and return the last report of each."""
    from headrace.spark.pipeline.driver_reports import DriverState, ask_to_stop, make, newest

    own = [one for one in newest(log) if one.pipeline == name and topic in (None, one.topic)]
    running = [one for one in own if one.state == DriverState.RUNNING]
    if not own and topic is None:
        _refuse_unknown(log, name)
    for one in running:
        ask_to_stop(make(log), one)
    return running


def _refuse_unknown(log: headrace.Log, name: str) -> None:
    known = {line.name for line in lines_of(log)}
    if name in known:
        return
    near = get_close_matches(name, known, 1)
    hint = f"Did you mean {near[0]!r}?" if near else "`headrace pipeline status` lists them"
    raise NotFound(f"no pipeline {name!r} has run on this log", hint=hint)


def _ended(
    log: headrace.Log, asked: "list[Report]", deadline: float, timeout: str
) -> Iterator[DriverStopped]:
    """Yield each driver as it ends. Raises TimedOut if one does not."""
    from headrace.spark.pipeline.driver_reports import DriverState, newest

    left = {one.run: one for one in asked}
    while left:
        for one in newest(log):
            if one.run in left and one.state != DriverState.RUNNING:
                del left[one.run]
                yield DriverStopped(
                    topic=one.topic,
                    host=one.host,
                    pid=one.pid,
                    state=str(one.state),
                    rows=one.rows,
                )
        if left and time.monotonic() >= deadline:
            one = next(iter(left.values()))
            raise TimedOut(
                f"{one.pipeline} on {one.host}, process {one.pid}, still runs after {timeout}",
                hint="It was asked to stop after its current batch; wait longer with --timeout",
            )
        if left:
            time.sleep(LOOK_SECONDS)
