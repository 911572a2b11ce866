"""What a reconciler's pass asks of its shard, as values.

Steps are performed at once, in order, before the shard does anything else; they cannot fail,
and one that was not performed comes again in the next pass. Deeds take their time: each is in
flight until the shard says `done` or `failed`, and is not planned again before.
"""

from dataclasses import dataclass
from typing import ClassVar

from headrace.errors import HeadraceError, PartitionUnknown, Recreated
from headrace.model.ids import GroupId, Revision
from headrace.node.shard.retry_table import ReconcileWork
from headrace.partition.machine.operations import Schema
from headrace.partition.reader import Key


@dataclass(frozen=True, slots=True)
class Fence:
    """Take the row away and refuse appends and reads. Its tombstone stands already."""

    key: Key


@dataclass(frozen=True, slots=True)
class InsertRouted:
    """Put the row of a life that the machine has."""

    key: Key
    shard: GroupId


@dataclass(frozen=True, slots=True)
class RemoveRouted:
    """Take away the row of a life that the machine has not, or should not serve."""

    key: Key


@dataclass(frozen=True, slots=True)
class ServeParked:
    """Take what is parked for this life, and serve it."""

    key: Key


@dataclass(frozen=True, slots=True)
class RefuseParked:
    """Drop what is parked for this life, and answer it with `error`."""

    key: Key
    found: Revision | None  # the life that is there instead; None: nothing is

    @property
    def error(self) -> HeadraceError:
        if self.found is None:
            return PartitionUnknown(str(self.key))
        name = f"{self.key.namespace:x}"
        return Recreated(name, expected=self.key.created, found=self.found)


@dataclass(frozen=True, slots=True)
class InsertOwned:
    """Propose OpenPartition."""

    work: ClassVar = ReconcileWork.BUILD
    key: Key
    topic_created: Revision
    schemas: tuple[Schema, ...]
    revision: Revision


@dataclass(frozen=True, slots=True)
class AdvanceSchema:
    """Propose SetSchema. The key is the topic's: its partition 0, and its own `created`."""

    work: ClassVar = ReconcileWork.SCHEMA
    key: Key
    version: int
    schema: bytes


@dataclass(frozen=True, slots=True)
class Close:
    """Propose ClosePartition."""

    work: ClassVar = ReconcileWork.REMOVAL
    key: Key
    revision: Revision


@dataclass(frozen=True, slots=True)
class Collect:
    """Propose a Seal, one for all that a plan asks for: files go when no snapshot names them.

    Done when its checkpoint has collected. Files that are left then are asked for again.
    """

    work: ClassVar = ReconcileWork.REMOVAL
    key: Key


@dataclass(frozen=True, slots=True)
class ConfirmRemove:
    """Drop from memory what belonged to this life: no file of it is left."""

    work: ClassVar = ReconcileWork.REMOVAL
    key: Key


Step = Fence | InsertRouted | RemoveRouted | ServeParked | RefuseParked
Deed = InsertOwned | AdvanceSchema | Close | Collect | ConfirmRemove
Action = Step | Deed
