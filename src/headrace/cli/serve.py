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
from headrace.cli.config_options import ConfigFile, Settings, flags_of
from headrace.cli.place import DATA_VARIABLE, directory
from headrace.node.config import load
from headrace.node.events import configure, event
from headrace.node.settings import Config
from headrace.server.memory import collect_rarely, give_back_when_idle, keep_freed_memory
from headrace.server.notify import READY, STOPPING, notify, status
from headrace.server.serve import Serving
from headrace.server.serve import serve as start_serving

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
    """
    found = load(config, os.environ, _flags(data, listen, settings or []))
    configure(found.log.format, found.log.level)
    sys.setswitchinterval(SWITCH_S)
    keep_freed_memory()
    collect_rarely()
    run(_serve(str(data), found))


def run(work: Coroutine[Any, Any, None]) -> None:
    """Run on uvloop, whose sockets are several times faster than asyncio's own."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(work)


async def _serve(path: str, config: Config) -> None:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    loop.add_signal_handler(signal.SIGHUP, _hung_up)
    serving = await start_serving(path, config, release=__version__)
    tidying = asyncio.create_task(give_back_when_idle(serving.traffic))
    notify(READY, status(_said(serving)))
    await stopped.wait()
    event("node.stopping")
    notify(STOPPING, status("stopping"))
    tidying.cancel()
    await serving.stop()


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
