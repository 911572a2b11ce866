# ruff: noqa: ANN401 -- a planted bug has the shape of what it replaces
"""Planted bugs of metadata in doubt and stamps; tests/node/test_doubt_plants.py finds all."""

from dataclasses import replace
from typing import Any

from headrace.journal.group import Group
from headrace.metadata import adoption, machine, state
from headrace.metadata.adoption import _Adoption
from headrace.metadata.machine import MetadataMachine
from headrace.metadata.results import Forgotten, MetadataRefusal
from headrace.metadata.state import MetadataState, Stream, record_deletion
from headrace.model import revisions
from headrace.model.ids import Revision
from headrace.model.revisions import STAMP_BITS, Order, counter_of, stamp
from headrace.node import bootstrap
from headrace.node.bootstrap import Boot
from headrace.node.doubt.doubt import Doubt
from headrace.node.doubt.metadata_start import MetadataStart
from headrace.node.group.pump import Pump
from headrace.node.node import Node
from headrace.node.shard.shard import Shard
from headrace.node.shard.views import Comparison
from headrace_lab.harness.mutants import Mutant, Patch

_options = Boot._options
_begin_copy = MetadataStart.begin_copy
_adopt = adoption.adopt
_dense = adoption._dense
_seal_if_due = Pump._seal_if_due


def _as_numbers(first: int, second: int) -> Order:
    if first == second:
        return Order.SAME
    return Order.BEFORE if first < second else Order.AFTER


def _counter_alone(counter: int, _: bytes) -> Revision:
    return Revision(counter << STAMP_BITS)


def _without_rise(self: MetadataMachine, command: Any) -> Any:
    record_deletion(self.state.deleted, command.namespace, command.created)
    return Forgotten(self.state.revision)


def _without_head(self: Boot, *arguments: Any) -> Any:
    return replace(_options(self, *arguments), head=None)


def _lower(
    state: Any, command: Any, timestamp: int, checksum: bytes, limits: Any
) -> MetadataState | MetadataRefusal:
    adopted = _adopt(state, command, timestamp, checksum, limits)
    if isinstance(adopted, MetadataState):
        adopted.revision = stamp(max(1, counter_of(state.revision)), checksum)
    return adopted


def _any_stream(self: _Adoption, wanted: Any) -> None:
    self.streams[wanted.id] = Stream(wanted.id, wanted.name, self.timestamp)


def _new_lives(found: Any, count: int, revision: Revision) -> Any:
    return _dense(dict.fromkeys(found, revision), count, revision)


def _begun_anew(self: MetadataStart, group: Group, **_: bool) -> None:
    _begin_copy(self, group)


def _recorded_later(self: MetadataState, namespace: Any, created: Revision) -> bool:
    return any(revisions.is_within(created, each) for each in self.deleted.get(namespace, ()))


def _of_any_history(self: MetadataState, namespace: Any, created: Any, _: Any) -> bool:
    return self.is_deleted(namespace, created)


def _unwanted_later(self: Comparison, key: Any) -> bool:
    lives = self.target.deleted.get(key.namespace, ())
    is_deleted = any(revisions.is_within(key.created, each) for each in lives)
    return is_deleted and not self.is_wanted(key)


def _sealed_in_doubt(self: Pump, now: int) -> Any:
    self.may_seal = True
    return _seal_if_due(self, now)


def _none(*_: object) -> list[Any]:
    return []


def _never(*_: object, **__: object) -> bool:
    return False


def _nothing(*_: object, **__: object) -> None:
    return None


def _plant(name: str, *patches: Patch) -> Mutant:
    return Mutant(name, "tests", patches)


PLANTS = (
    _plant("stamps compared as numbers", (revisions, "compare", _as_numbers)),
    _plant("life from the counter alone", (state, "stamp", _counter_alone)),
    _plant("a plain count of any history", (MetadataState, "has_ended", _of_any_history)),
    _plant("history not remembered", (state.MetadataState, "remember", _nothing)),
    _plant("ForgetLife without a rise", (MetadataMachine, "_forget_life", _without_rise)),
    _plant("a held group 0 is cut", (Boot, "_options", _without_head)),
    _plant("metadata not judged", (bootstrap, "judge", _nothing)),
    _plant("copy replaced in doubt", (MetadataStart, "begin_copy", _begun_anew)),
    _plant("trim in doubt", (Doubt, "refuses", _never)),
    _plant("expiry in doubt", (Shard, "set_doubt", _nothing)),
    _plant("adopt lowers the counter", (machine, "adopt", _lower)),
    _plant("adopt begins offsets at 0", (adoption, "_dense", _new_lives)),
    _plant("adopt takes a used stream id", (_Adoption, "stream", _any_stream)),
    _plant("an orphan is served", (Comparison, "is_orphan", _never)),
    _plant(
        "a record of a later life counts",
        (MetadataState, "is_deleted", _recorded_later),
        (Comparison, "is_unwanted", _unwanted_later),
    ),
    _plant("built in a shard that is astray", (Doubt, "is_astray", _never)),
    _plant("a checkpoint of metadata in doubt", (Pump, "_seal_if_due", _sealed_in_doubt)),
    _plant("adopted while a shard is away", (Node, "_absent", _none)),
    _plant("adopt keeps retention", (_Adoption, "suspend_retention", _nothing)),
)
