"""The corruption matrix of any machine: every damage of every file has one exact outcome.

One file of a scene at rest is damaged, the machine is opened, and the outcome is compared with
the one required by rules that do not depend on the code. Any other outcome fails, even a safe
one. The target is a `Matrix` of its machine.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from headrace_lab.harness.campaign import frame, hunt, run_all
from headrace_lab.harness.damage import Damage
from headrace_lab.harness.history import BROKEN
from headrace_lab.harness.mutants import Mutant, planted
from headrace_lab.harness.tally import Tally


class Rest(Protocol):
    """A machine at rest: a disk and all that is known of it."""

    name: str


S = TypeVar("S", bound=Rest)


class Matrix(ABC, Generic[S]):
    """One machine's scenes and what must come of each damage. Processes are sent it."""

    program: ClassVar[str]
    title: ClassVar[str]
    what: ClassVar[str]
    mutants: ClassVar[Sequence[Mutant]]
    counts: ClassVar[Mapping[str, int]]  # of a short run: how much of each scene
    hunts: ClassVar[Mapping[str, Mapping[str, int]]]  # likewise, by what has to catch a bug
    parts: ClassVar[tuple[int, int]]  # that a scene of a short run has, and of a full one

    @abstractmethod
    def build(self, name: str) -> S:
        """Play one scene to its end."""

    @abstractmethod
    def damages(self, scene: S, count: int | None, seed: int) -> Iterable[Damage]:
        """Return damages of a scene, as many as `count` asks for; all of them for None."""

    @abstractmethod
    def expected(self, scene: S, damage: Damage) -> Any:  # noqa: ANN401
        """Return what must happen; None if nothing changes, so that there is no case."""

    @abstractmethod
    def case(self, scene: S, damage: Damage, wanted: Any, number: int) -> str:  # noqa: ANN401
        """Damage, open, compare; name what came of it, or raise what is wrong."""

    def run(self, scene: S, damages: Iterable[Damage], *, stop_at_first: bool = False) -> Tally:
        """Put each damage on a scene."""
        tally = Tally()
        for damage in damages:
            wanted = self.expected(scene, damage)
            if wanted is None:
                tally.counts["without effect"] += 1
                continue
            tally.cases += 1
            tally.landed[damage.kind] += 1
            try:
                tally.found[self.case(scene, damage, wanted, tally.cases)] += 1
            except BROKEN as error:
                what = f"{type(error).__name__}: {error}"
                tally.failures.append(f"{scene.name}: {damage}: expected {wanted}: {what}")
                if stop_at_first:
                    break
        return tally

    def share(
        self, name: str, part: tuple[int, int], count: int | None, seed: int, mutant: str
    ) -> Tally:
        """Run one part of one scene's cases, in a process of its own."""
        with planted(mutant, self.mutants):
            scene = self.build(name)  # with the bug, too
            mine = islice(self.damages(scene, count, seed), part[0], None, part[1])
            return self.run(scene, mine, stop_at_first=bool(mutant))

    def catch(self, harness: str, mutant: str, seed: int) -> str:
        """Return how a planted bug is noticed, or nothing if it is not."""
        for name, count in self.hunts[harness].items():
            try:
                tally = self.share(name, (0, 1), count, seed, mutant)
            except BROKEN as error:
                return f"{name}: {error!r}"
            if tally.failures:
                return tally.failures[0]
        return ""

    def main(self, arguments: list[str] | None = None) -> int:
        """Run the matrix from the command line."""
        asked = frame(self.program, self.what, "full").parse_args(arguments)
        if asked.mutants:
            codes = [
                hunt(harness, partial(self.catch, harness), asked, self.mutants)
                for harness in self.hunts
            ]
            return max(codes)
        parts = self.parts[asked.full]
        jobs = [
            (name, (part, parts), None if asked.full else count, asked.seed, "")
            for name, count in self.counts.items()
            for part in range(parts)
        ]
        return run_all(self.title, Tally(), self.share, jobs, asked)
