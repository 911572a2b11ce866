"""`headrace serve`: run a node until it is stopped."""

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
SWITCH_S = 0.001  # thread switch interval: keeps the journal's thread from waiting on the loop


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command("serve")(serve)


def serve(
    data: Annotated[
        Path,
        typer.Option(
            parser=directory,
            metavar="DIR",
            envvar=DATA_VARIABLE,
            show_envvar=False,
            help=f"Data directory, created if missing; by default ${DATA_VARIABLE}.",
        ),
    ],
    listen: Annotated[
        str | None, typer.Option(help="HOST:PORT for clients; 127.0.0.1:7654 by default.")
    ] = None,
    embedded: Annotated[
        bool,
        typer.Option(
            "--embedded",
            help="Listen only on the socket in the directory, which must hold a log: for "
            "processes of this user, as with a log that one of them has opened.",
        ),
    ] = False,
    idle_exit: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Stop after this time without a connection."),
    ] = None,
    config: ConfigFile = None,
    settings: Settings = None,
) -> None:
    """Run a node: durable appends and reads over TCP and a unix socket.

    Settings come from defaults, the file, HEADRACE_SECTION__KEY in the environment and options.
    The last one wins; see `headrace config show --origin`. Stops cleanly on SIGTERM and Ctrl-C,
    and loses nothing on kill -9. Ignores SIGHUP: settings are read only at startup.

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
        raise BadConfig("listen.socket", "is off, but --embedded listens only on the socket")
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
    """Run on uvloop, whose sockets are several times faster than asyncio's."""
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
        raise BadRequest(f"--idle-exit {text} is too short", hint="Give at least 1s")
    return seconds


def _check_embedded(data: Path, listen: str | None) -> None:
    if listen is not None:
        raise BadRequest("--embedded listens on no address", hint="Omit --listen")
    if not holds_log(data):
        raise NotFound(f"{data} holds no log", hint="Give the directory of a log")


def _hung_up() -> None:
    event("node.hangup.ignored", said="settings are read at startup: restart to change them")


def _said(serving: Serving) -> str:
    """Say in one line how the start ended: a group that fails does not stop the others."""
    where = ", ".join(serving.addresses)
    if serving.boot.is_ready:
        return f"ready on {where}"
    return f"not ready, see /health/ready and headrace status; listens on {where}"


def _flags(data: Path, listen: str | None, settings: list[str]) -> dict[str, str]:
    flags = {"data.path": str(data)}
    if listen is not None:
        flags["listen.address"] = listen
    return flags | flags_of(settings)
