"""Reading the tail of a topic over TCP, beside a bare copy through a loopback socket.

Ours reads rows that are in the journal, still in the page cache, as Arrow batches with their
offsets: from disk, checked by the node, through a socket, checked again by the client, decoded.
The client is in a process of its own. The bare copy sends the same number of bytes from one
process to another through a loopback socket, 1 MiB at a time, and looks at none of them. They
are as many different ones: a block that never leaves the processor's cache is no data.
"""

import os
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headrace_lab.bench.bare import MIB
from headrace_lab.bench.frame import Case, Round, Side, rate, scaled
from headrace_lab.bench.rows import KIB
from headrace_lab.bench.serving import ProducerLoad, a_client, a_server, producers

_COUNT = 256  # MiB: all of it stays in the journal
_PASSES = 4  # in one round: the machine's mood changes within a tenth of a second
_FLOOR = 0.5


def cases(directory: Path, scale: float) -> list[Case]:
    """Batches of 1 MiB, and of 64 KiB."""
    size = scaled(_COUNT, scale) * MIB
    return [
        Case(
            name=f"the tail, {name} batches",
            unit="MiB/s",
            ours=_reading(
                directory / "node", ProducerLoad(1, batch_size, 8, size // batch_size)
            ),
            reference="a bare copy through a loopback socket",
            limit=lambda: _copying(size),
            floor=floor,
        )
        for name, batch_size, floor in (("1 MiB", MIB, _FLOOR), ("64 KiB", 64 * KIB, None))
    ]


def _reading(path: Path, load: ProducerLoad) -> Side:
    @contextmanager
    def reading() -> Iterator[Round]:
        with a_server(path) as address, producers(address, load) as running:
            running.send_all()
            with a_client("reader", address) as reader:
                size = _PASSES * load.count * load.size

                def one_round() -> float:
                    return size / MIB / sum(reader.send_all() for _ in range(_PASSES))

                yield one_round
        shutil.rmtree(path, ignore_errors=True)

    return reading


@contextmanager
def _copying(size: int) -> Iterator[Round]:
    """Copy `size` bytes, several times, from a forked child; MiB/s."""
    data = memoryview(os.urandom(size))
    total = _PASSES * size

    def one_round() -> float:
        with socket.create_server(("127.0.0.1", 0)) as server:
            child = os.fork()
            if child == 0:
                _send(server.getsockname(), data)
            connection, _ = server.accept()
            with connection:
                found = rate(total / MIB, lambda: _receive(connection, total))
            os.waitpid(child, 0)
            return found

    yield one_round


def _send(address: tuple[str, int], data: memoryview) -> None:
    """In the child."""
    with socket.create_connection(address) as connection:
        for _ in range(_PASSES):
            for start in range(0, len(data), MIB):
                connection.sendall(data[start : start + MIB])
    os._exit(0)


def _receive(connection: socket.socket, size: int) -> None:
    buffer = bytearray(MIB)
    left = size
    while left:
        received = connection.recv_into(buffer)
        if not received:
            raise ConnectionError("the sender ended too early")
        left -= received
