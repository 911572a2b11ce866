"""`headrace demo`: write rows, kill -9 the node, recover and compare with the ledgers."""

import secrets
import time
from pathlib import Path
from random import Random
from typing import Annotated

import typer
from rich.console import Console

from headrace.cli.demo.child_process import Broken, Silent
from headrace.cli.demo.kill_keys import has_terminal
from headrace.cli.demo.steps import perform
from headrace.cli.demo.transcript import Transcript, Verdict, count
from headrace.cli.terminal.exits import Exit
from headrace.cli.terminal.location import empty_place
from headrace.cli.terminal.output import Json, print_json
from headrace.errors import BadRequest, Unavailable

ROUND_COUNT = 3
SECONDS = 3.0
EARLIEST_SHARE = 0.5  # before that, little would be written yet
SEED_BITS = 16  # short enough to retype

Quick = Annotated[
    bool, typer.Option("--quick", help="One kill; takes at most about 20 seconds.")
]
WithSpark = Annotated[
    bool,
    typer.Option("--spark", help="Add a pipeline into a Delta table; takes about two minutes."),
]
WithKeys = Annotated[
    bool,
    typer.Option(
        "--chaos",
        envvar="CHAOS",
        help="With --spark: you kill processes by key. Also set by CHAOS=1.",
    ),
]
Data = Annotated[
    Path | None,
    typer.Option(
        file_okay=False,
        help="New or empty directory for log and ledgers; it is kept. By default a "
        "temporary one in the current directory, removed at the end.",
    ),
]

_EXITS = {
    Verdict.HELD: Exit.OK,
    Verdict.BROKEN: Exit.INTEGRITY,
    Verdict.NOT_SHOWN: Exit.NOT_SHOWN,
}


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command("demo")(demo)


def demo(
    quick: Quick = False,
    spark: WithSpark = False,
    chaos: WithKeys = False,
    rounds: Annotated[
        int, typer.Option(min=1, max=1000, help="Number of kills.")
    ] = ROUND_COUNT,
    seconds: Annotated[
        float, typer.Option(min=0.2, max=600.0, help="Longest life of the node, in seconds.")
    ] = SECONDS,
    seed: Annotated[
        int | None,
        typer.Option(min=0, help="Seed for the times of the kills; random by default."),
    ] = None,
    data: Data = None,
    as_json: Json = False,
) -> None:
    """Write rows, kill -9 the node midway, and compare with what was acknowledged.

    Producers send rows to a node in its own process and record its acknowledgements in
    ledgers. The node is killed with SIGKILL at a random moment and restarted; then every
    acknowledged row must be there once, in order, at its offset, and nothing else.
    With --spark a pipeline loads the rows into a Delta table meanwhile; its driver is killed,
    two drivers race, ledgers, log and table are proven to agree, and lies about them must be
    detected. With --chaos only you kill, with single keys: node, driver or both, as often as
    you like.
    Exits with 0 if that held, with 6 if it did not, and with 7 if nothing was shown.

    Examples:

        headrace demo --quick

        headrace demo --rounds 10 --seconds 5 --seed 7

        headrace demo --quick --data ./kept --json

        headrace demo --spark

        headrace demo --spark --chaos
    """
    if spark and quick:
        raise BadRequest("--quick runs without Spark", hint="Use either --quick or --spark")
    if chaos:
        _refuse_chaos(spark=spark, as_json=as_json)
    if seed is None:
        seed = secrets.randbits(SEED_BITS)
    transcript = Transcript(seed, _console(quiet=as_json))
    moments = Random(seed)
    kills = 1 if quick or spark else rounds
    lives = [seconds * moments.uniform(EARLIEST_SHARE, 1) for _ in range(kills + 1)]
    _tell(transcript, data, lives, spark=spark, chaos=chaos)
    if as_json:
        print_json(transcript.shape())
    raise typer.Exit(_EXITS[transcript.verdict])


def _refuse_chaos(*, spark: bool, as_json: bool) -> None:
    """Refuse the kill keys without Spark or without a terminal."""
    if not spark:
        raise BadRequest("--chaos, or CHAOS=1, requires --spark", hint="Add --spark")
    if as_json or not has_terminal():
        raise BadRequest(
            "--chaos, or CHAOS=1, needs a terminal: for the keys and for their effects",
            hint="Run it on a terminal, without a pipe and without --json; or omit it",
        )


def _tell(
    transcript: Transcript, data: Path | None, lives: list[float], *, spark: bool, chaos: bool
) -> None:
    started = time.monotonic()
    kills = "kills by your keys" if chaos else count(len(lives) - 1 + spark, "kill")
    with empty_place(data, "--data", "demo") as directory:
        transcript.open(directory, kills, is_kept=data is not None, spark=spark)
        try:
            if spark:
                _with_spark(transcript, directory, lives[0], chaos=chaos)
            else:
                perform(transcript, directory, lives)
        except Broken as broken:
            transcript.broke(str(broken))
        except Silent as silent:
            transcript.gave_up(str(silent))
    transcript.close(time.monotonic() - started)


def _with_spark(
    transcript: Transcript, directory: Path, seconds: float, *, chaos: bool
) -> None:
    try:
        from headrace.cli.demo.spark_steps import perform as perform_with_spark
    except ImportError as error:
        raise Unavailable(
            f"{error.name} is not installed",
            hint="Install its requirements: pip install 'headrace[spark,delta]'",
        ) from error
    perform_with_spark(transcript, directory, seconds, chaos=chaos)


def _console(quiet: bool) -> Console:
    return Console(markup=False, highlight=False, emoji=False, soft_wrap=True, quiet=quiet)
