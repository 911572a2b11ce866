"""`headrace demo`: write rows, kill -9 the node, recover, and compare with the ledgers."""

import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Annotated

import typer
from rich.console import Console
from rich.status import Status

import headrace
from headrace.cli.demo_check import COMPARED, compare
from headrace.cli.demo_node import COMMAND, DemoNode, free_address
from headrace.cli.demo_rows import PRODUCERS, SCHEMA, TOPIC, Sources
from headrace.cli.exits import Exit
from headrace.cli.output import Json, print_json
from headrace.cli.tale import Round, Tale, Verdict
from headrace.errors import Rejected, StorageFailed
from headrace.sim.testimony import Silent

ROUND_COUNT = 3
SECONDS = 3.0
EARLIEST_SHARE = 0.5  # a kill before that would find little written
LOOK_SECONDS = 0.2  # between two looks at the ledgers
SEED_BITS = 16  # short enough to type again
SHARD = "1"  # the group with the rows

_EXITS = {
    Verdict.HELD: Exit.OK,
    Verdict.BROKEN: Exit.INTEGRITY,
    Verdict.NOT_SHOWN: Exit.NOT_SHOWN,
}


def register(app: typer.Typer) -> None:
    """Put the command on `app`."""
    app.command("demo")(demo)


def demo(
    quick: Annotated[
        bool, typer.Option("--quick", help="One kill, and done within about 20 seconds.")
    ] = False,
    rounds: Annotated[int, typer.Option(min=1, max=1000, help="How many kills.")] = ROUND_COUNT,
    seconds: Annotated[
        float, typer.Option(min=0.2, max=600.0, help="How long the node lives at most.")
    ] = SECONDS,
    seed: Annotated[
        int | None,
        typer.Option(min=0, help="Draws when the node dies; by default by chance."),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            file_okay=False,
            help="A new or empty directory for log and ledgers, which is kept. "
            "By default one is made in the current directory and removed at the end.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Write rows, kill -9 the node in the middle, and compare with what was acknowledged.

    Producers send rows to a node in a process of its own, and write down in ledgers what it
    acknowledged. The node is killed with SIGKILL at a random moment and started again; then
    every acknowledged row must be there: once, in order, at its offset, and nothing else.
    Exits with 0 if that held, with 6 if it did not, and with 7 if nothing was shown.

    Examples:

        headrace demo --quick

        headrace demo --rounds 10 --seconds 5 --seed 7

        headrace demo --quick --data ./kept --json
    """
    if seed is None:
        seed = secrets.randbits(SEED_BITS)
    tale = Tale(seed, _console(quiet=as_json))
    count = 1 if quick else rounds
    started = time.monotonic()
    with _place(data) as directory:
        tale.open(directory, count, is_kept=data is not None)
        moments = Random(seed)
        lives = [seconds * moments.uniform(EARLIEST_SHARE, 1) for _ in range(count + 1)]
        try:
            _perform(tale, directory, lives)
        except Silent as silent:
            tale.gave_up(str(silent))
    tale.close(time.monotonic() - started)
    if as_json:
        print_json(tale.shape())
    raise typer.Exit(_EXITS[tale.verdict])


def _perform(tale: Tale, directory: Path, lives: list[float]) -> None:
    """Live through all lives of a node but the last, each ended by a kill; then compare."""
    address, data = free_address(), str(directory / "data")
    node = DemoNode(data, address, COMMAND)
    try:
        node.await_ready()
        tale.started(node.pid, address, node.ready_seconds)
        _make_topic(address)
        with Sources(directory, address) as sources:
            for seconds in lives[:-1]:
                _write(tale, node, sources, seconds)
                node = _killed(tale, node, sources, seconds, data, address)
            _write(tale, node, sources, lives[-1])
            sources.finish()
            if sources.failure is not None:
                tale.gave_up(f"a producer gave up: {sources.failure}")
            _compare(tale, sources, address)
    finally:
        node.__exit__(None, None, None)


def _make_topic(address: str) -> None:
    with headrace.connect(address) as log:
        log.create_topic(TOPIC, SCHEMA, partitions=PRODUCERS)


def _write(tale: Tale, node: DemoNode, sources: Sources, seconds: float) -> None:
    """Let the producers work for a while, at least until they got on, and say how far."""
    began, before = time.monotonic(), _acknowledged(sources)
    with Status("", console=tale.console) as status:
        while sources.failure is None:
            now, spent = _acknowledged(sources), time.monotonic() - began
            if spent >= seconds and now > before:
                break
            status.update(f"writing: {now:,} rows acknowledged")
            node.listen(max(LOOK_SECONDS / 10, min(seconds - spent, LOOK_SECONDS)))
            if not node.is_alive:
                raise Silent(f"the node ended by itself: {node.testimony.problems}")
    tale.wrote(_acknowledged(sources) - before, time.monotonic() - began)


def _killed(
    tale: Tale, node: DemoNode, sources: Sources, seconds: float, data: str, address: str
) -> DemoNode:
    """Kill the node, start it again, and return the new one."""
    pid = node.pid
    node.kill()
    claims = sources.claims()
    acknowledged = sum(claim.acknowledged for claim in claims)
    in_doubt = sum(claim.sent for claim in claims) - acknowledged
    tale.killed(pid, in_doubt)
    node.__exit__(None, None, None)
    again = DemoNode(data, address, COMMAND)
    try:
        again.await_ready()
        with headrace.connect(address) as log:
            said = log.recovery_report()[SHARD]
    except BaseException:
        again.__exit__(None, None, None)
        raise
    tale.recovered(
        again.pid,
        Round(
            acknowledged=acknowledged,
            in_doubt=in_doubt,
            seconds=round(seconds, 3),
            ready_seconds=round(again.ready_seconds, 3),
            recovery=tuple(said),
        ),
    )
    return again


def _compare(tale: Tale, sources: Sources, address: str) -> None:
    began = time.monotonic()
    with headrace.connect(address) as log:
        rows = log.topic(TOPIC).read(columns=COMPARED).to_table()
    found = compare(rows, sources.claims())
    tale.compare(_acknowledged(sources), found, time.monotonic() - began)


def _acknowledged(sources: Sources) -> int:
    return sum(claim.acknowledged for claim in sources.claims())


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
