"""`headrace serve`: run a node until it is told to stop."""

import asyncio
import os
import signal
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Annotated, Any

import typer
import uvloop

from headrace import __version__
from headrace.cli.commands.config import ConfigFile, Settings, flags_of
from headrace.cli.terminal.exits import NotFound
from headrace.cli.terminal.location import DATA_VARIABLE, directory, holds_log
from headrace.client.values.parse import duration
from headrace.errors import BadConfig, BadRequest, DirectoryHeld
from headrace.node.config.config import load
from headrace.node.config.settings import Config
from headrace.node.events import configure, event
from headrace.partition.no_pandas import hide_pandas
from headrace.server.memory import collect_rarely, give_back_when_idle, keep_freed_memory
from headrace.server.notify import READY, STOPPING, notify, status, until_idle
from headrace.server.serve import Serving
from headrace.server.serve import serve as start_serving

IDLE_SECONDS_MIN = 1.0
SWITCH_S = 0.001  # between threads: the journal's thread must not wait long for the loop


def register(app: typer.Typer) -> None:
    """Put the command on `app`."""
    app.command("serve")(serve)


def serve(
    data: Annotated[
        Path,
        typer.Option(
            parser=directory,
            metavar="DIR",
            envvar=DATA_VARIABLE,
            show_envvar=False,
            help=f"The data directory, made if it is not there; {DATA_VARIABLE} if not given.",
        ),
    ],
    listen: Annotated[
        str | None, typer.Option(help="HOST:PORT for clients; 127.0.0.1:7654 by default.")
    ] = None,
    embedded: Annotated[
        bool,
        typer.Option(
            "--embedded",
            help="Listen on the socket in the directory alone, which must hold a log: for "
            "processes of this user, as a log does that is open in one.",
        ),
    ] = False,
    idle_exit: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Stop when nobody has been connected for so long."),
    ] = None,
    config: ConfigFile = None,
    settings: Settings = None,
) -> None:
    """Run a node: durable appends and reads over TCP and a unix socket.

    Settings come from defaults, then the file, then HEADRACE_SECTION__KEY in the environment,
    then options; `headrace config show --origin` shows them. It stops cleanly on SIGTERM and
    Ctrl-C, and loses nothing on kill -9. SIGHUP changes nothing: settings are read at a start.

    Examples:

        headrace serve --data ./data

        headrace serve --data ./data --listen 127.0.0.1:9000 --set listen.http=

        headrace serve --data /var/lib/headrace --config /etc/headrace.toml

        headrace serve --data ./data --embedded --idle-exit 60s
    """
    idle = None if idle_exit is None else _idle(idle_exit)
    if embedded:
        _check_embedded(data, listen)
    found = load(config, os.environ, _flags(data, listen, settings or []))
    if embedded and not found.listen.socket:
        raise BadConfig("listen.socket", "is off, and --embedded listens on nothing else")
    configure(found.log.format, found.log.level)
    sys.setswitchinterval(SWITCH_S)
    keep_freed_memory()
    collect_rarely()
    try:
        run(_serve(str(data), found, idle, tcp=not embedded))
    except DirectoryHeld as held:
        held.hint = "Stop it, or choose another directory"
        raise


def run(work: Coroutine[Any, Any, None]) -> None:
    """Run on uvloop, whose sockets are several times faster than asyncio's own."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(work)


async def _serve(path: str, config: Config, idle: float | None, *, tcp: bool) -> None:
    hide_pandas()
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    loop.add_signal_handler(signal.SIGHUP, _hung_up)
    serving = await start_serving(path, config, release=__version__, tcp=tcp)
    beside = [asyncio.create_task(give_back_when_idle(serving.traffic))]
    if idle is not None:
        beside.append(asyncio.create_task(_end_when_idle(serving, idle, stopped)))
    notify(READY, status(_said(serving)))
    await stopped.wait()
    event("node.stopping")
    notify(STOPPING, status("stopping"))
    for task in beside:
        task.cancel()
    await serving.stop()


async def _end_when_idle(serving: Serving, seconds: float, stopped: asyncio.Event) -> None:
    await until_idle(serving.traffic, seconds)
    event("node.idle", seconds=seconds)
    stopped.set()


def _idle(text: str) -> float:
    seconds = duration(text, "--idle-exit").seconds
    if seconds < IDLE_SECONDS_MIN:
        raise BadRequest(f"--idle-exit {text} is too short", hint="It is 1s at least")
    return seconds


def _check_embedded(data: Path, listen: str | None) -> None:
    if listen is not None:
        raise BadRequest("--embedded listens on no address", hint="Leave out --listen")
    if not holds_log(data):
        raise NotFound(f"{data} holds no log", hint="Name the directory of one")


def _hung_up() -> None:
    event("node.hangup.ignored", said="settings are read at the start: restart to change them")


def _said(serving: Serving) -> str:
    """Say in a line how the start ended: one group that refuses does not stop the others."""
    where = ", ".join(serving.addresses)
    if serving.boot.is_ready:
        return f"ready on {where}"
    return f"not ready, see /health/ready and headrace status; listens on {where}"


def _flags(data: Path, listen: str | None, settings: list[str]) -> dict[str, str]:
    flags = {"data.path": str(data)}
    if listen is not None:
        flags["listen.address"] = listen
    return flags | flags_of(settings)
