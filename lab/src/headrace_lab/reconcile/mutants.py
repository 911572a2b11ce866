# ruff: noqa: ANN401 -- a planted bug has the shape of what it replaces
"""Planted bugs of reconciler, router and parking: each must be caught by the histories."""

from dataclasses import replace
from typing import Any

from headrace.errors import PartitionUnknown
from headrace.metadata.state import MetadataState
from headrace.model.ids import GroupId, Revision
from headrace.model.revisions import is_within
from headrace.node.shard import reconciler
from headrace.node.shard.actions import Close, Collect, ConfirmRemove
from headrace.node.shard.parking import Parking
from headrace.node.shard.reconciler import Reconciler, _Pass
from headrace.node.shard.retry_table import ReconcileWork, RetryTable
from headrace.node.shard.router import Route, Router
from headrace.node.shard.views import Comparison
from headrace.partition.reader import Key
from headrace_lab.harness.mutants import Mutant

_done = Reconciler.done
_failed = Reconciler.failed
_prepare = _Pass.__post_init__
_run = _Pass.run
_fence = _Pass._fence
_can_open = _Pass._can_open
_mark = reconciler._mark
_route = Router.route
_expire = Parking.expire
_remove_topic = MetadataState.remove_topic
_schemas_ahead = Comparison.schemas_ahead


def _nothing(*_: object, **__: object) -> None:
    return None


def _always(*_: object, **__: object) -> bool:
    return True


def _never(*_: object, **__: object) -> bool:
    return False


def _done_at_close(self: Reconciler, action: Any) -> None:
    _done(self, action)
    if isinstance(action, Close):
        self.tombstones.discard(action.key)


def _still_in_flight(self: Reconciler, action: Any, cause: str, now_ms: int) -> None:
    _failed(self, action, cause, now_ms)
    self.flights[action.work, action.key] = action


def _collected_once(self: Reconciler, action: Any) -> None:
    _done(self, action)
    if isinstance(action, Collect):
        self.flights[action.work, action.key] = action


def _settled_though_parked(self: Reconciler, mark: Any, _: Any) -> bool:
    return mark == self._settled and not self._is_busy()


def _only_if_woken(self: Reconciler, _: int) -> bool:
    return self._is_woken


def _nothing_deferred(self: _Pass) -> list[Any]:
    actions = _run(self)
    self.is_deferred = False
    return actions


def _removed_unrecorded(self: MetadataState, topic: Any) -> None:
    before = dict(self.deleted)
    _remove_topic(self, topic)
    self.deleted = before


def _never_behind(self: _Pass) -> None:
    _prepare(self)
    self.is_current = self.may_remove = True


def _absent_is_deleted(self: Comparison, key: Key) -> bool:
    return is_within(key.created, self.target.revision) and not self.is_wanted(key)


def _removed_in_doubt(self: _Pass) -> None:
    _prepare(self)
    self.may_remove = self.is_current and self.both.target.is_normal


def _always_normal(self: _Pass) -> None:
    _prepare(self)
    self.may_remove = self.is_current and self.both.target.doubt is None


def _no_tombstone(self: _Pass) -> None:
    before = set(self.reconciler.tombstones)
    _fence(self)
    self.reconciler.tombstones &= before


def _confirmed_at_once(self: _Pass) -> None:
    for key in sorted(self.reconciler.tombstones, key=str):
        if self.both.is_there(key):
            self._propose(Close(key, self.both.target.revision))
        else:
            self._start(ConfirmRemove(key))


def _started_again(self: _Pass, deed: Any) -> bool:
    if self.reconciler.backoff.is_held(deed.work, deed.key, self.now_ms):
        return False
    self.reconciler.flights[deed.work, deed.key] = deed
    self.actions.append(deed)
    return True


def _opened_beside(self: _Pass, key: Key, target: Any) -> bool:
    number = self.both.actual.state.topic_number(key.namespace)
    return self.is_current and self.opening.get(number) in (None, target.topic_created)


def _opened_by_laggards(self: _Pass, key: Key, target: Any) -> bool:
    is_current, self.is_current = self.is_current, True
    try:
        return _can_open(self, key, target)
    finally:
        self.is_current = is_current


def _present(self: Comparison, key: Key) -> bool:
    return key.namespace in self.actual.state.partitions


def _newest_only(self: Comparison, number: int) -> Any:
    return _schemas_ahead(self, number)[-1:]


def _any_revision(target: Any, actual: Any) -> Any:
    return replace(_mark(target, actual), revision=Revision(0))


def _any_files(target: Any, actual: Any) -> Any:
    return replace(_mark(target, actual), files=frozenset())


def _first_shard(self: Router, namespace: int, created: int, metadata: Any) -> Any:
    try:
        return _route(self, namespace, created, metadata)
    except PartitionUnknown:
        return Route(GroupId(1), Revision(created))


def _deleted_served(self: Router, namespace: int, created: int, metadata: Any) -> Any:
    row = self._routes.get(namespace)  # type: ignore[call-overload]
    if row is not None and row.created == created:
        return row
    return _route(self, namespace, created, metadata)


def _removed_by_namespace(self: Router, key: Key) -> None:
    known = self._routes.pop(key.namespace, None)
    if known is not None:
        del self._rows[known.shard][key.namespace]


def _last_row_wins(self: Router, key: Key, shard: GroupId) -> None:
    _removed_by_namespace(self, key)
    self._routes[key.namespace] = Route(shard, key.created)
    self._rows.setdefault(shard, {})[key.namespace] = key.created


def _expired_in_silence(self: Parking[Any], now_ms: int) -> list[Any]:
    _expire(self, now_ms)
    return []


def _taken_and_kept(self: Parking[Any], key: Key) -> list[Any]:
    return [each.item for each in self._lots.get(key, [])]


def _held_for_any(self: RetryTable, _: ReconcileWork, __: Key, now_ms: int) -> bool:
    return any(now_ms < each.until_ms for each in self.failures())


def _fenced_by_namespace(self: Reconciler, key: Key) -> bool:
    return key.namespace in {each.namespace for each in self.tombstones}


def _histories(name: str, owner: Any, attribute: str, value: Any) -> Mutant:
    return Mutant(name, "histories", ((owner, attribute, value),))


# What these break heals in time, or needs metadata that runs backwards: each has a test.
TESTED = (
    Mutant("one backoff for all work", "tests", ((RetryTable, "is_held", _held_for_any),)),
    Mutant("build in a taken namespace", "tests", ((Comparison, "is_blocked", _never),)),
    Mutant("the last row wins", "tests", ((Router, "insert", _last_row_wins),)),
)
MUTANTS = (
    _histories("tombstone cleared at the close", Reconciler, "done", _done_at_close),
    _histories("confirmed while files exist", _Pass, "_tear_down", _confirmed_at_once),
    _histories("fence without a tombstone", _Pass, "_fence", _no_tombstone),
    _histories("row kept during the teardown", Router, "remove", _nothing),
    _histories("tombstones lost in a crash", _Pass, "_adopt", _nothing),
    _histories("tombstones without a life", Reconciler, "is_fenced", _fenced_by_namespace),
    _histories("collected once only", Reconciler, "done", _collected_once),
    _histories("failed, and still in flight", Reconciler, "failed", _still_in_flight),
    _histories("in flight, and planned again", _Pass, "_start", _started_again),
    _histories("no delay after a failure", RetryTable, "is_held", _never),
    _histories("failures never forgotten", RetryTable, "prune", _nothing),
    _histories("removal by metadata that lags", _Pass, "__post_init__", _never_behind),
    _histories("removal while not normal", _Pass, "__post_init__", _always_normal),
    Mutant(
        "removal without a record",
        "histories",
        (
            (Comparison, "is_unwanted", _absent_is_deleted),
            (_Pass, "__post_init__", _removed_in_doubt),
        ),
    ),
    _histories("removal in doubt", _Pass, "__post_init__", _removed_in_doubt),
    _histories("deletions without records", MetadataState, "remove_topic", _removed_unrecorded),
    _histories("lives compared by presence", Comparison, "is_there", _present),
    _histories("opened beside another life", _Pass, "_can_open", _opened_beside),
    _histories("opened by metadata that lags", _Pass, "_can_open", _opened_by_laggards),
    _histories("schema version skipped", Comparison, "schemas_ahead", _newest_only),
    _histories("schemas not followed", _Pass, "_advance_schemas", _nothing),
    _histories("tick ignored", Reconciler, "is_due", _only_if_woken),
    _histories("skipped while parked", Reconciler, "_is_settled", _settled_though_parked),
    Mutant(
        "skipped while deferred",
        "histories",
        ((_Pass, "run", _nothing_deferred), (Reconciler, "_is_busy", _never)),
    ),
    _histories("skipped at any revision", reconciler, "_mark", _any_revision),
    _histories("skipped with any files", reconciler, "_mark", _any_files),
    _histories("unknown goes to shard 1", Router, "route", _first_shard),
    _histories("deleted, and served by its row", Router, "route", _deleted_served),
    _histories("row removed by namespace", Router, "remove", _removed_by_namespace),
    _histories("parked for the dead, and left", _Pass, "_is_over", _never),
    _histories("parked served unseen", _Pass, "_is_routed", _always),
    _histories("expired in silence", Parking, "expire", _expired_in_silence),
    _histories("taken, and kept", Parking, "take", _taken_and_kept),
)
