"""`headrace demo`: write, kill -9, recover, report, with real processes and a real disk."""

import json
import secrets
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, assert_never

import typer
from rich.console import Console
from rich.status import Status

from headrace.cli.exits import Exit
from headrace.cli.tale import Tale, Verdict
from headrace.errors import Rejected, StorageFailed
from headrace.sim.kill import Checked, Event, Killed, Moments, Started, kill_rounds
from headrace.sim.testimony import Silent
from headrace.sim.workload import Workload
from headrace.sim.writer import Job

ROUND_COUNT = 3
SECONDS = 1.5
EARLIEST_SHARE = 0.3  # a kill before that would find little written
SEAL_EVERY = 500  # a checkpoint now and then, a replay worth the name after most kills
SEED_BITS = 16  # short enough to type again

_EXITS = {
    Verdict.HELD: Exit.OK,
    Verdict.BROKEN: Exit.INTEGRITY,
    Verdict.NOT_SHOWN: Exit.NOT_SHOWN,
}


def register(app: typer.Typer) -> None:
    """Put the command on `app`."""
    app.command("demo")(demo)


def demo(
    rounds: Annotated[
        int, typer.Option(min=1, max=10_000, help="How many kills.")
    ] = ROUND_COUNT,
    seconds: Annotated[
        float, typer.Option(min=0.05, max=3600.0, help="How long a writer lives at most.")
    ] = SECONDS,
    seed: Annotated[
        int | None,
        typer.Option(
            min=0, help="Draws what is written and when it dies; by default by chance."
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            file_okay=False,
            help="A new or empty directory for the group, which is kept. "
            "By default one is made in the current directory and removed at the end.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Write, kill -9 in the middle, recover, and report what became of every entry.

    A writer process appends commit groups to a group on disk and says what it acknowledged.
    It is killed with SIGKILL at a random moment; another process recovers the group; and each
    entry that was heard to be acknowledged must be there: once, in its place, unchanged.
    Nothing else may be there but what was on its way. Exits with 0 if that held, with 6 if it
    did not, and with 7 if nothing was shown because no kill landed on a writer at work.
    """
    if seed is None:
        seed = secrets.randbits(SEED_BITS)
    tale = Tale(seed, _console(quiet=as_json))
    with _place(data) as directory:
        tale.open(directory, rounds, is_kept=data is not None)
        job = Job(data=str(directory), workload=Workload(seed, seal_every=SEAL_EVERY))
        moments = Moments(seed, seconds * EARLIEST_SHARE, seconds)
        started = time.monotonic()
        with closing(kill_rounds(job, rounds, moments)) as events:
            _tell(tale, events)
    tale.close(time.monotonic() - started)
    if as_json:
        typer.echo(json.dumps(tale.as_json(), indent=2))
    raise typer.Exit(_EXITS[tale.verdict])


def _tell(tale: Tale, events: Iterator[Event]) -> None:
    status = Status("", console=tale.console)
    try:
        for event in events:
            match event:
                case Started():
                    tale.started(event)
                    status.update("writing")
                    status.start()
                case Killed():
                    status.stop()
                    tale.killed(event)
                case Checked():
                    tale.checked(event)
                case _:
                    assert_never(event)
    except Silent as silent:
        tale.gave_up(str(silent))
    finally:
        status.stop()


@contextmanager
def _place(data: Path | None) -> Iterator[Path]:
    """Give an empty directory: the one asked for, or one that is removed at the end."""
    try:
        if data is None:
            with TemporaryDirectory(prefix=".demo-", dir=Path.cwd()) as directory:
                yield Path(directory)
            return
        data.mkdir(mode=0o700, parents=True, exist_ok=True)
        if next(data.iterdir(), None) is not None:
            raise Rejected(f"{data} is not empty", hint="Name a new directory with --data")
        yield data.resolve()
    except OSError as error:
        raise StorageFailed(str(data or Path.cwd()), "demo", error) from error


def _console(quiet: bool) -> Console:
    return Console(markup=False, highlight=False, emoji=False, soft_wrap=True, quiet=quiet)
