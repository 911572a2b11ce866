"""A held group 0, opened by an operator's decision, with a fault at every effect.

`python -m headrace_lab.lives.held_life` changes metadata on a disk in memory, damages group 0
and its copy so that no start can recover or heal it, and then adopts what was lost. Every
effect of that is struck, the process dies in every way, and the next start must find

    the same doubt   the old group, the copy and heads as they were, and the same metadata; or
    all adopted      every life that shards have, and every old file next to the new group,

and in either case the decision finally has the same result: the log continues, its copy and
heads follow, and it heals like any other. No head, copy or entry ever has another checksum at
an op that the old log had. `resumes` strikes the start that gives a whole new group its name.

A power cut keeps or loses a rename of a directory as a whole, as journaling file systems do.
"""

import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from random import Random
from typing import Any

from headrace.errors import Corrupt, DiskFull, HeadraceError
from headrace.journal.entry import Entry, seal
from headrace.journal.group import Group
from headrace.journal.heads import NAME as HEADS
from headrace.journal.heads import Head, HeadsFile, read_heads
from headrace.metadata import commands
from headrace.metadata.machine import MetadataMachine
from headrace.metadata.results import MetadataRefusal
from headrace.metadata.state import FOREVER, MetadataState, MetadataTarget
from headrace.model.ids import Op, Revision, View
from headrace.model.namespace import Namespace
from headrace.model.proposal import EntryProposal
from headrace.model.revisions import newest
from headrace.node.doubt import heal, held
from headrace.node.doubt.metadata_copy import NAME as COPY
from headrace.node.doubt.metadata_copy import read_copy
from headrace.node.doubt.metadata_start import MetadataStart, hold
from headrace.node.identity import GROUPS, METADATA
from headrace.storage.seam import Directory
from headrace_lab.disk.faults import Crashed, Effect, Keep, Pending, choices
from headrace_lab.disk.memory import MemoryDisk
from headrace_lab.harness.campaign import frame, hunt, run_all
from headrace_lab.harness.history import Broken
from headrace_lab.harness.mutants import planted
from headrace_lab.harness.strikes import SUBSET_BOUND, StrikeHook, strikes
from headrace_lab.harness.tally import Tally
from headrace_lab.lives.copy_world import (
    LAYOUT,
    OLDER,
    PLACE,
    SHARD,
    ZERO,
    CopyWorld,
    Known,
    come_to,
    contents,
    fresh,
    harm,
)
from headrace_lab.lives.held_mutants import MUTANTS

KINDS = ("end", "middle", "headers", "gone", OLDER)
COPIES = ("copy gone", "copy bad", OLDER)
DEATHS = 12  # ways to die at one strike
SAMPLE = 8  # one strike of so many, unless all are asked for


@dataclass(frozen=True, slots=True)
class Hurt:
    """A log whose group 0 is held, and what is known of it outside the disk."""

    kind: str
    disk: MemoryDisk
    known: Known
    files: dict[str, bytes]  # of the old group, its copy and heads
    read: bytes  # the digest of what can be read of it

    @property
    def lives(self) -> dict[Namespace, MetadataTarget]:
        return come_to(self.known.log).state.target()


@dataclass(slots=True)
class Start:
    """What a start came to. No group: it is held."""

    start: MetadataStart
    machine: MetadataMachine
    group: Group | None


def begin(disk: MemoryDisk, known: Known) -> Start:
    """Start as a node does, with the heads that are on the disk."""
    known.starts += 1
    head = read_heads(disk.root, ZERO.cluster).heads.get(METADATA)
    machine = MetadataMachine(LAYOUT)
    start = MetadataStart.look(
        disk.root, ZERO, machine, fresh(replace(known, head=head)), is_in_use=True
    )
    follows = {SHARD: known.follows}
    try:
        group, _ = start.recover() if start.is_decided else start.settle(follows)
    except Corrupt as error:
        if hold(disk.root, ZERO, machine, error) is None:
            raise
        return Start(start, machine, None)
    start.begin_copy(group)
    return Start(start, machine, group)


def write_head(disk: MemoryDisk, head: Head) -> None:
    """Write the file of heads, as the node does before it answers."""
    file = HeadsFile.of(disk.root, ZERO.cluster, read_heads(disk.root, ZERO.cluster))
    with suppress(HeadraceError, OSError):  # a finding: nothing halts for it
        file.write({METADATA: head}, 1)
    file.close()


def decision(read: MetadataState, had: MetadataState) -> commands.Adopt:
    """What an operator decides where the shards have all that metadata had."""
    lost = [one for key, one in had.topics.items() if not _is_same(read, key, one.created)]
    ended = [one for key, one in read.topics.items() if not _is_same(had, key, one.created)]
    floor = newest(had.revision, read.revision)
    return commands.Adopt(
        floor,
        tuple(commands.AdoptedEnd(one.stream_id, one.id, one.created) for one in ended),
        tuple(
            commands.AdoptedStream(number, f"recovered-{number}")
            for number in sorted({one.stream_id for one in lost} - set(read.streams))
        ),
        tuple(
            commands.AdoptedTopic(
                one.stream_id,
                one.id,
                f"recovered-{one.id}-{one.created}",
                one.created,
                one.shard,
                tuple(each.data for each in one.schemas),
                tuple(
                    commands.AdoptedPartition(each.id, each.created) for each in one.partitions
                ),
            )
            for one in lost
        ),
        (),
    )


def _is_same(state: MetadataState, key: Any, created: Revision) -> bool:  # noqa: ANN401
    found = state.topics.get(key)
    return found is not None and found.created == created


def adopt(disk: MemoryDisk, begun: Start, hurt: Hurt) -> Group:
    """Decide, once more where the disk is full; heads follow before it is answered."""
    command = decision(begun.machine.state, come_to(hurt.known.log).state)
    try:
        opened = held.open_held(begun.start, [command])
    except DiskFull:
        if begun.start.is_replaced:
            raise
        opened = held.open_held(begun.start, [command])
    if isinstance(opened, MetadataRefusal):
        raise Broken(f"it is refused: {opened.message}")
    begun.machine, begun.group = opened.machine, opened.group
    journal = opened.group.journal
    write_head(disk, Head(journal.durable, journal.tip))
    return opened.group


def a_hurt_log(rng: Random, kind: str, copy: str) -> Hurt:
    """A log at rest whose group 0 no start recovers or heals."""
    while True:
        world = CopyWorld(MemoryDisk(), Known())
        world.open()
        world.change(3, rng)
        earlier, older_copy = contents(world.disk, PLACE), world.disk.content(COPY)
        world.checkpoint(2, rng)
        world.change(3, rng)
        world.group.idle()
        world.write_heads()
        disk, known = world.disk.kill().power_cut(), world.known
        assert known.head is not None
        write_head(disk, known.head)
        disk = disk.kill().power_cut()
        harm(disk, kind, rng, earlier)
        if copy == OLDER:
            disk.put(COPY, older_copy)
        else:
            harm(disk, copy, rng, {})
        trial = begin(disk.clone(), known.copy())
        if (
            trial.group is None
            and decision(trial.machine.state, come_to(known.log).state).topics
        ):
            return Hurt(f"{kind}, {copy}", disk, known, _files(disk), trial.machine.digest())


def _files(disk: MemoryDisk) -> dict[str, bytes]:
    whole = {path: data for path, data in contents(disk).items() if path in (COPY, HEADS)}
    return whole | {PLACE + name: data for name, data in contents(disk, PLACE).items()}


def come_back(disk: MemoryDisk, hurt: Hurt, tally: Tally) -> None:
    """Start: the same doubt, or all adopted; then decide, and live on."""
    known = hurt.known.copy()
    known.starts += 10
    begun = begin(disk, known)
    if begun.group is None:
        tally.found["the same doubt"] += 1
        if begun.machine.digest() != hurt.read:
            raise Broken("less can be read than before")
        if _files(disk) != hurt.files:
            raise Broken("it is held, and some of it has changed")
        adopt(disk, begun, hurt)
    else:
        tally.found["all adopted"] += 1
    check(disk, begun, hurt)
    live_on(disk, begun, hurt)


def check(disk: MemoryDisk, begun: Start, hurt: Hurt) -> None:
    """Hold what is there against what shards have, and what the old log was."""
    lives = {key: one.created for key, one in begun.machine.state.target().items()}
    if lives != {key: one.created for key, one in hurt.lives.items()}:
        raise Broken("a life that shards have is gone, or one is there that they have not")
    aside = contents(disk, "groups/")
    for name, data in hurt.files.items():
        if name.startswith(PLACE):
            end = name.removeprefix(PLACE)
            if not any(path.endswith(end) and each == data for path, each in aside.items()):
                raise Broken(f"the old {name} is nowhere")
    group = begun.group
    assert group is not None
    journal, found = group.journal, read_copy(disk.root, ZERO)
    if found.copy is None or found.copy.newest != Head(journal.durable, journal.tip):
        raise Broken("the copy does not follow")
    known = {one.op: one.checksum for one in journal.headers(Op(1), journal.durable)}
    known |= found.copy.history
    for entry in hurt.known.log:
        if known.get(entry.op, entry.checksum) != entry.checksum:
            raise Broken(f"op {entry.op} is another entry than the one of before")


def live_on(disk: MemoryDisk, begun: Start, hurt: Hurt) -> None:
    """Change metadata, end without a word, and start; then lose the group, and heal."""
    group = begun.group
    assert group is not None
    entry = _change(group)
    group.append([entry])
    group.apply(entry)
    expected = begun.machine.digest()
    write_head(disk, Head(entry.op, entry.checksum))
    for end in ("none", "gone"):
        disk = disk.kill().power_cut()
        if end == "gone":
            harm(disk, end, Random(1), {})
        known = hurt.known.copy()
        known.starts += 20 if end == "none" else 30
        known.follows = begun.machine.state.revision
        again = begin(disk, known)
        if again.group is None or again.machine.digest() != expected:
            raise Broken(f"after a change and an end, with group 0 {end}, it is another state")


def _change(group: Group) -> Entry:
    command = commands.CreateTopic("default", "after", b"schema", 1, SHARD, FOREVER, ())
    return seal(
        ZERO,
        EntryProposal(command.operation, commands.encode(command)),
        op=Op(group.journal.durable + 1),
        parent=group.journal.tip,
        view=View(0),
        timestamp=1,
    )


def sweep(seed: int, every: int = 1) -> Tally:
    """Strike at every effect of an adoption."""
    tally, rng = Tally(), Random(seed)
    for kind in KINDS:
        hurt = a_hurt_log(rng, kind, rng.choice(COPIES))
        seen: list[Effect] = []
        trial = hurt.disk.clone()
        begun = begin(trial, hurt.known.copy())
        trial.hook = seen.append
        adopt(trial, begun, hurt)
        trial.hook = None
        if not _comes_back(trial.kill(), hurt, tally, "no fault"):
            return tally
        for strike in list(strikes(seen, rng))[
            :: every if every == 1 else rng.choice((every,))
        ]:
            disk = hurt.disk.clone()
            begun = begin(disk, hurt.known.copy())
            disk.hook = StrikeHook(strike)
            with suppress(Crashed, HeadraceError):
                adopt(disk, begun, hurt)
            for way, after in _ends(disk, rng):
                what = f"{strike.name} at effect {strike.number}, {way}"
                if not _comes_back(after, hurt, tally, what):
                    return tally
    return tally


def resumes(seed: int, every: int = 1) -> Tally:
    """Strike at every effect of the start that gives a whole new group its name."""
    tally, rng = Tally(), Random(seed)
    for kind in ("end", "gone"):
        hurt = a_hurt_log(rng, kind, "copy gone")
        disk = hurt.disk.clone()
        begun = begin(disk, hurt.known.copy())
        with suppress(HeadraceError):
            _half(disk, begun, hurt)
        disk = disk.kill().power_cut()
        seen: list[Effect] = []
        trial = disk.clone()
        trial.hook = seen.append
        begin(trial, hurt.known.copy())
        for strike in list(strikes(seen, rng))[rng.randrange(every) :: every]:
            again = disk.clone()
            again.hook = StrikeHook(strike)
            with suppress(Crashed, HeadraceError):
                begin(again, hurt.known.copy())
            for way, after in _ends(again, rng):
                what = f"a start, {strike.name} at effect {strike.number}, {way}"
                if not _comes_back(after, hurt, tally, what):
                    return tally
        if tally.found["the same doubt"]:
            tally.failures.append(f"{hurt.kind}: a new group that is whole was not taken")
    return tally


def _half(disk: MemoryDisk, begun: Start, hurt: Hurt) -> None:
    """Decide, and end once the old group is set aside."""
    swap = heal._swap

    def aside(groups: Directory) -> heal.Swapped:
        if heal._child(groups, heal.GROUP) is not None:
            groups.rename(heal.GROUP, f"{heal.GROUP}.old-1")
            groups.sync()
        raise HeadraceError("it ends here")

    heal._swap = aside
    try:
        adopt(disk, begun, hurt)
    finally:
        heal._swap = swap


def stale(seed: int) -> Tally:
    """A decision that was not brought to its end, and a whole group 0 that was put back."""
    tally, rng = Tally(), Random(seed)
    world = CopyWorld(MemoryDisk(), Known())
    world.open()
    world.change(4, rng)
    world.group.idle()
    world.write_heads()
    whole, known = world.disk.kill().power_cut(), world.known
    assert known.head is not None
    write_head(whole, known.head)
    disk = whole.kill().power_cut()
    harm(disk, "headers", rng, {})
    disk.remove(COPY)
    begun = begin(disk, known.copy())
    assert begun.group is None
    hurt = Hurt("stale", disk, known, _files(disk), begun.machine.digest())
    swap = heal._swap
    heal._swap = _unplaced
    try:
        with suppress(HeadraceError):
            adopt(disk, begun, hurt)
    finally:
        heal._swap = swap
    for name in contents(whole, PLACE):
        disk.put(PLACE + name, whole.content(PLACE + name))
    tally.cases += 1
    begun = begin(disk, known.copy())
    disk = disk.kill().power_cut()
    groups = disk.root.child(GROUPS)
    groups.rename(heal.GROUP, "lost")
    groups.sync()
    for name in (COPY, HEADS):
        disk.remove(name)
    begun = begin(disk, known.copy())
    if begun.group is not None:
        tally.failures.append("a new group that was not placed is taken for one that was lost")
    return tally


def _unplaced(groups: Directory) -> heal.Swapped:
    raise HeadraceError(f"{groups.path}: it ends here")


def _comes_back(disk: MemoryDisk, hurt: Hurt, tally: Tally, what: str) -> bool:
    tally.cases += 1
    try:
        come_back(disk, hurt, tally)
    except (Broken, HeadraceError, AssertionError) as error:
        tally.failures.append(f"{hurt.kind}, {what}: {error!r}")
        return False
    return True


def _ends(disk: MemoryDisk, rng: Random) -> Iterator[tuple[str, MemoryDisk]]:
    """Yield the disk as each kind of death leaves it, at most so many."""
    yield "process killed", disk.kill()
    pending = disk.pending()
    ways = [kept for kept in choices(pending, rng, SUBSET_BOUND) if not _halves(pending, kept)]
    for kept in ways if len(ways) <= DEATHS else rng.sample(ways, DEATHS):
        yield f"power cut keeping {[keep.index for keep in kept]}", disk.power_cut(kept)


def _halves(pending: Sequence[Pending], kept: Sequence[Keep]) -> bool:
    """Say whether one half of a directory's rename is kept, and the other is lost."""
    indices = {keep.index for keep in kept}
    return any(
        (added.kind, dropped.kind) == ("add-name", "drop-name")
        and all(one.path.rpartition("/")[0] == GROUPS for one in (added, dropped))
        and (added.index in indices) != (dropped.index in indices)
        for added, dropped in pairwise(pending)
    )


def share(seed: int, every: int) -> Tally:
    """Sweep once with a seed."""
    tally = sweep(seed, every)
    for more in (resumes(seed, every), stale(seed)):
        tally.merge(more)
    return tally


def catch(mutant: str, seed: int) -> str:
    """Return how a sweep notices a planted bug, or nothing if it does not."""
    with planted(mutant, MUTANTS):
        for number in range(seed, seed + 4):
            try:
                tally = share(number, SAMPLE)
            except (Broken, HeadraceError, AssertionError) as error:
                return f"seed {number}: {error!r}"
            if tally.failures:
                return tally.failures[0]
    return ""


def main(arguments: list[str] | None = None) -> int:
    """Run sweeps from the command line."""
    parser = frame("headrace_lab.lives.held_life", "a held group 0 that is opened", "full")
    asked = parser.parse_args(arguments)
    if asked.mutants:
        return hunt("held", catch, asked, MUTANTS)
    every = 1 if asked.full else SAMPLE
    jobs = [(asked.seed + part, every) for part in range(4 if asked.full else 2)]
    return run_all("sweep of a held group 0 that is opened", Tally(), share, jobs, asked)


if __name__ == "__main__":
    sys.exit(main())
