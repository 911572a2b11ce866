"""`headrace demo`: write rows, kill -9 the node, recover, and compare with the ledgers."""

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
EARLIEST_SHARE = 0.5  # a kill before that would find little written
SEED_BITS = 16  # short enough to type again

Quick = Annotated[
    bool, typer.Option("--quick", help="One kill, and done within about 20 seconds.")
]
WithSpark = Annotated[
    bool,
    typer.Option("--spark", help="With a pipeline into a Delta table, in about two minutes."),
]
WithKeys = Annotated[
    bool,
    typer.Option(
        "--chaos",
        envvar="CHAOS",
        help="With --spark: you have the kill keys. Also by CHAOS=1.",
    ),
]
Data = Annotated[
    Path | None,
    typer.Option(
        file_okay=False,
        help="A new or empty directory for log and ledgers, which is kept. "
        "By default one is made in the current directory and removed at the end.",
    ),
]

_EXITS = {
    Verdict.HELD: Exit.OK,
    Verdict.BROKEN: Exit.INTEGRITY,
    Verdict.NOT_SHOWN: Exit.NOT_SHOWN,
}


def register(app: typer.Typer) -> None:
    """Put the command on `app`."""
    app.command("demo")(demo)


def demo(
    quick: Quick = False,
    spark: WithSpark = False,
    chaos: WithKeys = False,
    rounds: Annotated[int, typer.Option(min=1, max=1000, help="How many kills.")] = ROUND_COUNT,
    seconds: Annotated[
        float, typer.Option(min=0.2, max=600.0, help="How long the node lives at most.")
    ] = SECONDS,
    seed: Annotated[
        int | None,
        typer.Option(min=0, help="Draws when the node dies; by default by chance."),
    ] = None,
    data: Data = None,
    as_json: Json = False,
) -> None:
    """Write rows, kill -9 the node in the middle, and compare with what was acknowledged.

    Producers send rows to a node in a process of its own, and write down in ledgers what it
    acknowledged. The node is killed with SIGKILL at a random moment and started again; then
    every acknowledged row must be there: once, in order, at its offset, and nothing else.
    With --spark a pipeline brings the rows into a Delta table meanwhile; its driver is killed,
    two drivers race, ledgers, log and table are proven to agree, and lies about them must be
    named. With --chaos nobody is killed but by you, with single keys: node, driver or both, as
    often as you like.
    Exits with 0 if that held, with 6 if it did not, and with 7 if nothing was shown.

    Examples:

        headrace demo --quick

        headrace demo --rounds 10 --seconds 5 --seed 7

        headrace demo --quick --data ./kept --json

        headrace demo --spark

        headrace demo --spark --chaos
    """
    if spark and quick:
        raise BadRequest("--quick is without Spark", hint="Use --quick or --spark")
    if chaos:
        _refuse_chaos(spark=spark, as_json=as_json)
    if seed is None:
        seed = secrets.randbits(SEED_BITS)
    tale = Transcript(seed, _console(quiet=as_json))
    moments = Random(seed)
    kills = 1 if quick or spark else rounds
    lives = [seconds * moments.uniform(EARLIEST_SHARE, 1) for _ in range(kills + 1)]
    _tell(tale, data, lives, spark=spark, chaos=chaos)
    if as_json:
        print_json(tale.shape())
    raise typer.Exit(_EXITS[tale.verdict])


def _refuse_chaos(*, spark: bool, as_json: bool) -> None:
    """Refuse the kill keys where there is nothing to kill, or nobody to press them."""
    if not spark:
        raise BadRequest("--chaos, or CHAOS=1, is with Spark", hint="Add --spark")
    if as_json or not has_terminal():
        raise BadRequest(
            "--chaos, or CHAOS=1, needs a terminal: for keys, and for what they do",
            hint="Run it on one, without a pipe and without --json; or leave it out",
        )


def _tell(
    tale: Transcript, data: Path | None, lives: list[float], *, spark: bool, chaos: bool
) -> None:
    started = time.monotonic()
    kills = "kills by your keys" if chaos else count(len(lives) - 1 + spark, "kill")
    with empty_place(data, "--data", "demo") as directory:
        tale.open(directory, kills, is_kept=data is not None, spark=spark)
        try:
            if spark:
                _with_spark(tale, directory, lives[0], chaos=chaos)
            else:
                perform(tale, directory, lives)
        except Broken as broken:
            tale.broke(str(broken))
        except Silent as silent:
            tale.gave_up(str(silent))
    tale.close(time.monotonic() - started)


def _with_spark(tale: Transcript, directory: Path, seconds: float, *, chaos: bool) -> None:
    try:
        from headrace.cli.demo.spark_steps import perform as perform_with_spark
    except ImportError as error:
        raise Unavailable(
            f"{error.name} is not installed",
            hint="Install what it needs: pip install 'headrace[spark,delta]'",
        ) from error
    perform_with_spark(tale, directory, seconds, chaos=chaos)


def _console(quiet: bool) -> Console:
    return Console(markup=False, highlight=False, emoji=False, soft_wrap=True, quiet=quiet)
