"""The actions that a reconciler pass plans for its shard, as values.

Steps are performed at once, in order, before the shard does anything else; they cannot fail,
and a missed one is planned again in the next pass. Deeds take time: each is in flight until
the shard reports `done` or `failed`, and is not planned again before.
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
    """Remove the row, and refuse appends and reads. The tombstone is already set."""

    key: Key


@dataclass(frozen=True, slots=True)
class InsertRouted:
    """Insert the row of a life that the machine has."""

    key: Key
    shard: GroupId


@dataclass(frozen=True, slots=True)
class RemoveRouted:
    """Remove the row of a life that the machine does not have, or should not serve."""

    key: Key


@dataclass(frozen=True, slots=True)
class ServeParked:
    """Serve the requests parked for this life."""

    key: Key


@dataclass(frozen=True, slots=True)
class RefuseParked:
    """Drop the requests parked for this life, answering with `error`."""

    key: Key
    found: Revision | None  # the life in its place; None: there is none

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
    """Drop this life from memory: no file of it is left."""

    work: ClassVar = ReconcileWork.REMOVAL
    key: Key


Step = Fence | InsertRouted | RemoveRouted | ServeParked | RefuseParked
Deed = InsertOwned | AdvanceSchema | Close | Collect | ConfirmRemove
Action = Step | Deed
