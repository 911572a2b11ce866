"""An S3 on this machine: moto's server as a process of its own."""

import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final, Self

from headrace.cli.demo.child_process import Silent

HOST: Final = "127.0.0.1"
START_SECONDS: Final = 60.0
CALL_SECONDS: Final = 60.0
LOOK_SECONDS: Final = 0.02
REGION: Final = "us-east-1"
# What moto takes for credentials: it knows nobody.
KEYS: Final = {"AWS_ACCESS_KEY_ID": "headrace", "AWS_SECRET_ACCESS_KEY": "headrace-secret"}


class S3Server:
    """A running moto. Use it as a context: it does not outlive the block."""

    def __init__(self) -> None:
        self.port = free_port()
        self._count = 0
        command = [sys.executable, "-m", "moto.server", "-H", HOST, "-p", str(self.port)]
        # Objects stay in memory: so large that no test spills them.
        env = {**os.environ, "MOTO_S3_DEFAULT_KEY_BUFFER_SIZE": str(2**30)}
        self._process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=env
        )

    def __enter__(self) -> Self:
        deadline = time.monotonic() + START_SECONDS
        while True:
            with suppress(OSError):
                socket.create_connection((HOST, self.port), 1.0).close()
                return self
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.__exit__()
                raise Silent("moto's server does not start")
            time.sleep(LOOK_SECONDS)

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def endpoint(self) -> str:
        return f"http://{HOST}:{self.port}"

    def make_bucket(self) -> str:
        """Make an empty bucket and return its name."""
        self._count += 1
        name = f"bucket-{self._count}"
        request = urllib.request.Request(f"{self.endpoint}/{name}", method="PUT")
        urllib.request.urlopen(request, timeout=CALL_SECONDS).close()
        return name


@contextmanager
def an_s3() -> Iterator[S3Server]:
    """Give a running S3, without any bucket so far."""
    with S3Server() as server:
        yield server


def settings_of(endpoint: str, **more: object) -> dict[str, object]:
    """Return the settings of a location at an endpoint of this machine."""
    return {"endpoint": endpoint, "allow_http": True, "region": REGION, "timeout": 10.0, **more}


def free_port() -> int:
    with socket.create_server((HOST, 0)) as found:
        port: int = found.getsockname()[1]
        return port
