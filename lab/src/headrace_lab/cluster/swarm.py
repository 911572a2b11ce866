"""What one seed does: which faults, how often, how many replicas. Drawn for each seed."""

from collections import Counter
from dataclasses import dataclass, field
from random import Random
from typing import Final

# Every kind of fault that a run promises. One that never landed over a run was not tested.
NETWORK: Final = ("drop", "duplicate", "corrupt", "cut", "clog", "very old packet")
CUTS: Final = ("isolate", "one-way cut", "two-way cut", "clog a link", "very old")
PROCESS: Final = (
    "kill",
    "power cut",
    "whole-cluster power cut",
    "crash at an effect",
    "crash inside recovery",
    "pause",
    "slow",
    "clock jump",
)
DISK: Final = ("full disk", "failing sync", "failing write")
DAMAGE: Final = ("rot", "unreadable sector", "misdirected write", "wiped", "old directory")
TORN: Final = ("torn write", "lost write", "reordered write")
PROMISED: Final = (
    *NETWORK,
    *(one for one in CUTS if one not in ("clog a link", "very old")),
    *PROCESS,
    "crash inside install",
    *DISK,
    *DAMAGE,
    "made again by init",
    *TORN,
)


@dataclass(slots=True)
class SeedCounts:
    """What happened, counted as it landed."""

    landed: Counter[str] = field(default_factory=Counter)
    events: int = 0
    requests: int = 0
    view_changes: int = 0
    primary_crashes: int = 0
    transfers: int = 0
    recoveries: int = 0

    def merge(self, other: "SeedCounts") -> None:
        self.landed.update(other.landed)
        for name in ("events", "requests", "view_changes", "primary_crashes", "transfers"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.recoveries += other.recoveries


@dataclass(frozen=True, slots=True)
class Swarm:
    """The options of one seed."""

    replicas: int
    delay_min: int  # milliseconds
    delay_mean: float
    drop: float
    duplicate: float
    corrupt: float
    old: bool
    disk_mean: float  # milliseconds of a sync
    every: int  # milliseconds between faults, on the average
    kinds: tuple[str, ...]  # of CUTS, PROCESS, DISK and DAMAGE
    slots: int
    seal_every: int
    clients: int
    requests: int
    starts_empty: bool  # directories are made by the first start, not by init
    is_safe: bool = True  # one good copy of everything is left


def draw(rng: Random, replicas: int | None, *, is_safe: bool = True) -> Swarm:
    """Choose: each kind of fault is in or out, each rate low or high."""
    kinds = [kind for kind in (*CUTS, *PROCESS, *DISK, *DAMAGE) if rng.random() < 0.6]
    return Swarm(
        replicas=replicas or rng.choice((2, 3, 3, 3, 3, 5)),
        delay_min=rng.randrange(0, 4),
        delay_mean=rng.choice((0.5, 2.0, 8.0)),
        drop=rng.choice((0.0, 0.01, 0.05, 0.15)),
        duplicate=rng.choice((0.0, 0.02, 0.2)),
        corrupt=rng.choice((0.0, 0.01, 0.03)),
        old="very old" in kinds,
        disk_mean=rng.choice((0.5, 2.0, 6.0)),
        every=rng.choice((150, 250, 400)),
        kinds=tuple(kinds or ["kill", "power cut"]),
        slots=rng.choice((48, 64, 96)),
        seal_every=rng.choice((8, 12, 20)),
        clients=rng.randrange(4, 9),
        requests=rng.randrange(350, 400),
        starts_empty=rng.random() < 0.3,
        is_safe=is_safe,
    )
