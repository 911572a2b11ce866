"""The corruption matrix of a shard: `python -m headrace_lab.shard.matrix`.

A segment, a carry file or the local part of a snapshot is damaged. `damage.py` gives the
required outcome: which rows raise a named error and which are read correctly, what is reported,
what the scrub finds. Then the shard lives on through some checkpoints, and the file is
restored: every row must be there.
"""

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from random import Random
from typing import ClassVar

from headrace.errors import CorruptEntry, CorruptSegment, HeadraceError
from headrace.partition.files.file_set import FileFinding
from headrace.partition.reader import Key
from headrace.partition.scrub import scrub
from headrace.partition.shard_store import Store, StoreOptions
from headrace_lab.disk.memory import MemoryDisk
from headrace_lab.harness.damage import Damage
from headrace_lab.harness.history import Broken
from headrace_lab.harness.matrix import Matrix
from headrace_lab.shard.damage import Expected, contents, every, expected
from headrace_lab.shard.history import compare, rows_of
from headrace_lab.shard.mutants import MUTANTS
from headrace_lab.shard.oracle import Oracle
from headrace_lab.shard.scene import STORIES, Range, ShardScene, build
from headrace_lab.shard.script import ShardActor, options

FLIPS_SHORT = 3  # places of each file, besides its ends; --full takes every byte
HEAL_EVERY = 4  # of the cases, how many get their file back
_NAMED = (CorruptSegment, CorruptEntry)


class ShardMatrix(Matrix[ShardScene]):
    """A shard."""

    program = "headrace_lab.shard.matrix"
    title = "corruption matrix of a shard"
    what = "damage every file of a shard"
    mutants = MUTANTS
    counts: ClassVar = dict.fromkeys(STORIES, FLIPS_SHORT)
    hunts: ClassVar = {"matrix": counts}
    parts = (2, 32)

    def build(self, name: str) -> ShardScene:
        return build(name)

    def damages(self, scene: ShardScene, count: int | None, seed: int) -> list[Damage]:
        damages = list(every(scene, seed, count))
        Random(seed).shuffle(damages)  # each part gets some of every kind
        return damages

    def expected(self, scene: ShardScene, damage: Damage) -> Expected | None:
        return expected(scene, damage)

    def case(self, scene: ShardScene, damage: Damage, wanted: Expected, number: int) -> str:
        _Case(scene, damage, wanted).go(heal=number % HEAL_EVERY == 0)
        return _family(wanted)


def _family(wanted: Expected) -> str:
    if wanted.refused:
        return f"refused: {wanted.refused}"
    if wanted.fell_back:
        return "fell back"
    if wanted.fate:
        return f"extra file {wanted.fate}"
    rows = "rows lost by name" if wanted.lost else "every row right"
    if wanted.guarded:
        rows = "rows right, or lost by name"
    said = "found at the opening" if wanted.finding else "found by the scrub"
    return f"{rows}, {said if wanted.finding or wanted.scrubbed else 'nothing to find'}"


@dataclass(slots=True)
class _Case:
    scene: ShardScene
    damage: Damage
    wanted: Expected

    def go(self, *, heal: bool) -> None:
        disk = self.scene.disk.clone()
        actor = ShardActor(disk, self.scene.history.copy(), _options())
        is_rot = self.damage.kind == "rot"
        if not is_rot:
            self._damage(disk)
        try:
            store = actor.open().store
        except HeadraceError as error:
            if type(error).__name__ != self.wanted.refused:
                raise
            self._nothing_lost(disk)
            return
        if self.wanted.refused:
            raise Broken(f"opens, instead of {self.wanted.refused}")
        if is_rot:
            self._read(store, actor.history.oracle, (), ())  # every segment is open now
            self._damage(disk)
        self._judge(store, actor)
        self._live_on(actor)
        if heal:
            self._heal(disk, actor)

    def _damage(self, disk: MemoryDisk) -> None:
        for path, content in contents(self.scene, self.damage).items():
            if content is None:
                disk.remove(path)
            else:
                disk.put(path, content)

    def _judge(self, store: Store, actor: ShardActor) -> None:
        """Compare what is said and what is read, right after the opening."""
        wanted = self.wanted
        if store.report.fell_back != (wanted.fell_back or self.scene.name == "fallen back"):
            raise Broken(f"went back to an older snapshot: {store.report.fell_back}")
        if store.report.faulty:
            raise Broken(f"damage in the journal: {store.report.lines()}")
        name = self.damage.path.split("/")[1]
        said = [one for one in store.findings if not self._is_due(one)]
        if bool(said) != wanted.finding or not all(self._is_ours(one.path) for one in said):
            raise Broken(f"findings at the opening: {store.findings}")
        self._read(store, actor.history.oracle, wanted.lost, wanted.guarded)
        for _ in scrub(store.keeper):
            pass
        found = any(self._is_ours(one.path) for one in store.findings if not self._is_due(one))
        if found != (wanted.scrubbed or wanted.finding):
            raise Broken(f"findings of the scrub on {name}: {store.findings}")
        # A bad segment is in quarantine now: what was in a cache is not served any more.
        lost = (*wanted.lost, *wanted.guarded)
        self._read(store, actor.history.oracle, lost, ())

    def _is_due(self, finding: FileFinding) -> bool:
        """Tell whether an opening that makes a checkpoint has to say this of another file."""
        if finding.what.startswith("unsealed"):
            return bool(self.wanted.lost)  # rows that are lost make no segment
        # What nobody needs any more and does not even look like ours is not unlinked.
        return "moved to quarantine" in finding.what and not self.wanted.lost

    def _is_ours(self, path: str) -> bool:
        return any(path.endswith(one) for one in contents(self.scene, self.damage))

    def _live_on(self, actor: ShardActor) -> None:
        """Checkpoints go on, what was needed is not unlinked, and nothing else is lost."""
        for _ in range(3):
            actor.go_on(1)
            actor.checkpoint()
        store = actor.running().store
        maybe = (*self.wanted.lost, *self.wanted.guarded, *self._entries_hit())
        self._read(store, actor.history.oracle, (), maybe)
        if self.wanted.lost or self.wanted.guarded:
            self._nothing_lost(actor.disk)
        self._check_fate(actor.disk)

    def _entries_hit(self) -> Iterable[Range]:
        """Rows of a rotten carry file are lost once the journal lets go of its copy."""
        life_of = self.scene.history.oracle.lives
        if self.damage.path.startswith("carry/") and self.wanted.scrubbed:
            yield from ((key, life.first, life.end) for key, life in life_of.items())

    def _nothing_lost(self, disk: MemoryDisk) -> None:
        """The bytes of a file that rows need are still there, in their place or aside."""
        there = [disk.content(path) for path in disk.files()]
        for path, content in contents(self.scene, self.damage).items():
            is_needed = path in self.scene.segments or path in self.scene.lonely
            if content is not None and is_needed and content not in there:
                raise Broken(f"{path} was unlinked")

    def _check_fate(self, disk: MemoryDisk) -> None:
        if not self.wanted.fate:
            return
        name = self.damage.path.split("/")[1]
        stays = self.damage.path in disk.files()
        aside = f"quarantine/{name}" in disk.files()
        fate = "stays" if stays else "quarantined" if aside else "gone"
        if fate != self.wanted.fate:
            raise Broken(f"the extra file is {fate}")

    def _heal(self, disk: MemoryDisk, actor: ShardActor) -> None:
        """Put the files back as they were: every row is there again."""
        again = disk.kill()
        for path in contents(self.scene, self.damage):
            if path in self.scene.named:
                again.put(path, self.scene.disk.content(path))
        healed = ShardActor(again, actor.history.copy(), _options())
        store = healed.open().store
        if [one for one in store.findings if self._is_ours(one.path)]:
            raise Broken(f"findings after the file was put back: {store.findings}")
        self._read(store, healed.history.oracle, (), ())
        healed.history.check_store(store)

    def _read(
        self,
        store: Store,
        oracle: Oracle,
        lost: tuple[Range, ...],
        guarded: tuple[Range, ...],
    ) -> None:
        """Read every row alone: right, or lost by a name that is expected."""
        for key, life in oracle.lives.items():
            if store.reader.bounds(key) != (life.first, life.end):
                raise Broken(f"{key} has offsets {store.reader.bounds(key)}")
            start = life.first
            for end in _borders(key, life.first, life.end, (*lost, *guarded)):
                is_lost = _within(key, start, lost)
                is_guarded = _within(key, start, guarded)
                self._read_range(store, oracle, (key, start, end), is_lost, is_guarded)
                start = end

    def _read_range(
        self, store: Store, oracle: Oracle, rows: Range, is_lost: bool, is_guarded: bool
    ) -> None:
        key, start, end = rows
        try:
            found = rows_of(store, key, start, end)
        except _NAMED as error:
            if not (is_lost or is_guarded):
                raise
            changed = contents(self.scene, self.damage)
            if not any(path.split("/")[1] in str(error) for path in changed):
                raise Broken(f"the error does not name the file: {error}") from error
            return
        if is_lost:
            raise Broken(f"{key}: offsets {start} to {end} are read, and yet lost")
        compare(key, oracle.lives[key], start, end, found)


def _borders(key: Key, first: int, end: int, ranges: Iterable[Range]) -> list[int]:
    edges = {end, *(edge for one in ranges if one[0] == key for edge in one[1:])}
    return sorted(edge for edge in edges if first < edge <= end)


def _within(key: Key, offset: int, ranges: Iterable[Range]) -> bool:
    return any(one[0] == key and one[1] <= offset < one[2] for one in ranges)


def _options() -> StoreOptions:
    fresh = options()
    for _ in range(500):
        fresh.new_id()
    return fresh


MATRIX = ShardMatrix()

if __name__ == "__main__":
    sys.exit(MATRIX.main())
