"""The benches by name. Each is one module with a one-line docstring and `cases`."""

from pathlib import Path
from typing import Protocol

from headrace.errors import Rejected
from headrace_lab.bench import disk, remote
from headrace_lab.bench.cases import (
    fetch,
    freshness,
    ingest,
    journal,
    partitions,
    recovery,
    replay,
    sealed,
    small_rows,
    spark,
)
from headrace_lab.bench.cases import open as opening
from headrace_lab.bench.frame import Case


class Bench(Protocol):
    """What a bench module offers."""

    def cases(self, directory: Path, scale: float, /) -> list[Case]:
        """Give the cases. They write below `directory`; `scale` multiplies a round's work."""


BENCHES: dict[str, Bench] = {
    "disk": disk,
    "journal": journal,
    "recovery": recovery,
    "ingest": ingest,
    "partitions": partitions,
    "replay": replay,
    "remote": remote,
    "rows": small_rows,
    "fetch": fetch,
    "sealed": sealed,
    "open": opening,
    "spark": spark,
    "freshness": freshness,
}


def find(name: str) -> Bench:
    """Give the bench called `name`."""
    if name not in BENCHES:
        raise Rejected(
            f"there is no bench called {name!r}", hint=f"The benches are: {', '.join(BENCHES)}"
        )
    return BENCHES[name]


def about(bench: Bench) -> str:
    """Give the line that says what `bench` measures."""
    return (bench.__doc__ or "").partition("\n")[0]
