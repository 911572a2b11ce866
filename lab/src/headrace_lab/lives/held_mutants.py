# ruff: noqa: ANN401 -- a planted bug has the shape of what it replaces
"""Planted bugs of opening a held group 0: each must be caught by `lives/held_life.py`."""

from collections.abc import Sequence
from typing import Any

from headrace.metadata.commands import Adopt, Command
from headrace.model.ids import Op, Revision
from headrace.node.doubt import heal, held
from headrace.node.doubt.metadata_start import MetadataStart
from headrace.storage.seam import Directory
from headrace_lab.harness.mutants import Mutant, Patch

_open_held = held.open_held
_swap = heal._swap
_make = heal._make
_begin_copy = MetadataStart.begin_copy
NOTHING = Adopt(Revision(0), (), (), (), ())


def _deleted(groups: Directory) -> heal.Swapped:
    room = heal._child(groups, heal.GROUP)
    if room is not None:
        heal._empty(room)
    return _swap(groups)


def _below(self: MetadataStart) -> Op:
    return Op(0) if self.remains.left is None else self.remains.left.op


def _afterwards(start: MetadataStart, commands: Sequence[Command]) -> Any:
    """First the new group, then what was decided: as a proposal to a group that serves."""
    opened = _open_held(start, [NOTHING])
    if not isinstance(opened, held.OpenedMetadata):
        return opened
    after = held.decide(
        opened.machine, start.identity, opened.group.journal.durable, commands, 1
    )
    assert isinstance(after, held.Decision)
    start._replace(after.base)
    recovered = start.recover()
    start.begin_copy(recovered[0])
    return held.OpenedMetadata(start.machine, *recovered, after.result)


def _placed_first(groups: Directory, *arguments: Any) -> heal.Swapped:
    groups.child(heal.NEW, make=True)
    swapped = _swap(groups)
    _make(groups.child(heal.GROUP), *arguments)
    return swapped


def _only_at_a_start(self: MetadataStart, group: Any, **more: bool) -> None:
    if not self.is_replaced:
        _begin_copy(self, group, **more)


def _nothing(_: Directory) -> None:
    return None


def _plant(name: str, *patches: Patch) -> Mutant:
    return Mutant(name, "held", patches)


MUTANTS = (
    _plant("old group 0 deleted instead of set aside", (heal, "_swap", _deleted)),
    _plant("ops begin below the head", (MetadataStart, "reached", property(_below))),
    _plant("decided after the new group has the name", (held, "open_held", _afterwards)),
    _plant("placed before it is whole", (heal, "heal", _placed_first)),
    _plant("the copy does not follow", (MetadataStart, "begin_copy", _only_at_a_start)),
    _plant("a new group that was not placed is kept", (heal, "discard", _nothing)),
)
