"""Appends over TCP, from a client's Arrow batch to an acknowledgement that is on disk.

Eight producers send batches of 1 MiB with `topic.append`, four of each in flight, or batches of
64 KiB with `log.producer`, which combines them. The same batches, one per request, are shown as
well. And 64 producers append single rows of 1 KiB and wait for each. They run in one process,
the node in another; both share the machine with the disk's own work.

The bare loop writes and fdatasyncs 1 MiB at a time into a growing file. Single rows are
compared with the lower of two limits: five times the rate of bare fdatasyncs, and 0.6 of the
rate of the same node with its journal in memory, which is the limit of Python alone.
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from headrace_lab.bench.bare import MIB, growing
from headrace_lab.bench.frame import Case, Round, Side, scaled
from headrace_lab.bench.rows import KIB
from headrace_lab.bench.serving import ProducerLoad, a_server, producers

IN_MEMORY = Path("/dev/shm")
_LARGE = ProducerLoad(8, MIB, 4, 512)
_MEDIUM = ProducerLoad(8, 64 * KIB, 0, 8_192)
_SINGLE = ProducerLoad(8, 64 * KIB, 16, 8_192)
_LONE = ProducerLoad(64, KIB, 1, 20_000)
_GROUP_COMMIT = 5.0
_OF_MEMORY = 0.6


@dataclass(frozen=True, slots=True)
class Remote:
    """The same, to a node that runs somewhere. Its rows stay there."""

    address: str | None  # None: a node for each round

    def cases(self, directory: Path, scale: float) -> list[Case]:
        return cases(directory, scale, self.address)


def cases(directory: Path, scale: float, address: str | None = None) -> list[Case]:
    """Large, medium and lone batches. Without an address, each round has a node of its own."""

    def at(load: ProducerLoad) -> ProducerLoad:
        return ProducerLoad(load.producers, load.size, load.window, scaled(load.count, scale))

    large, medium, single, lone = map(at, (_LARGE, _MEDIUM, _SINGLE, _LONE))
    bare = growing(directory, MIB, scaled(512, scale))
    found = [
        Case(
            name=name,
            unit="MiB/s",
            ours=sending(directory / "node", load, address, in_mib=True),
            reference="the bare write + fdatasync loop, 1 MiB at a time",
            limit=bare,
            floor=floor,
        )
        for name, load, floor in (
            ("8 producers, 1 MiB batches", large, 0.7),
            ("8 producers, 64 KiB batches", medium, 0.4),
            ("the same, each a request", single, None),
        )
    ]
    syncs = growing(directory, KIB, scaled(2_000, scale))
    memory = IN_MEMORY / f"headrace-bench-{directory.name}"
    in_memory = sending(memory, lone, address, in_mib=False)
    found.append(
        Case(
            name="64 producers, lone 1 KiB rows",
            unit="requests/s",
            ours=sending(directory / "node", lone, address, in_mib=False),
            reference="the lower of 5 x bare fdatasyncs and 0.6 x this node in memory",
            limit=_lower(syncs, in_memory),
            floor=1.0,
        )
    )
    return found


def sending(path: Path, load: ProducerLoad, address: str | None, *, in_mib: bool) -> Side:
    """Send what `load` says, to a node of its own for each round if there is no address."""
    amount = load.count * load.size / MIB if in_mib else load.count

    @contextmanager
    def to_a_node() -> Iterator[str]:
        if address is not None:
            yield address
        else:
            with a_server(path) as own:
                yield own
            shutil.rmtree(path, ignore_errors=True)

    @contextmanager
    def rounds() -> Iterator[Round]:
        def one_round() -> float:
            with to_a_node() as where, producers(where, load) as running:
                return amount / running.send_all()

        yield one_round

    return rounds


def _lower(syncs: Side, in_memory: Side) -> Side:
    """Measure both in each round, and give the lower limit in requests a second."""

    @contextmanager
    def both() -> Iterator[Round]:
        with syncs() as run_syncs, in_memory() as run_in_memory:
            # Bare rates are in MiB/s of 1 KiB blocks.
            yield lambda: min(_GROUP_COMMIT * run_syncs() * KIB, _OF_MEMORY * run_in_memory())

    return both
