"""A request finds the shard that has the very life it means, or an error with a name."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.metadata.builders import a_machine, a_topic, delete_topic, done

from headrace.errors import PartitionUnknown, Recreated, Unavailable
from headrace.metadata.machine import MetadataMachine
from headrace.metadata.state import MetadataState
from headrace.model.ids import GroupId, Revision
from headrace.model.namespace import Namespace
from headrace.node.shard.router import Awaited, Route, Router
from headrace.partition.reader import Key
from headrace_lab.harness.mutants import planted
from headrace_lab.reconcile.mutants import TESTED

ONE, TWO = GroupId(1), GroupId(2)
P0 = Namespace(0)
FIRST, SECOND = Key(P0, Revision(1)), Key(P0, Revision(3))  # lives of P0


def metadata(*, lives: int = 1, deleted: bool = False, shard: int = 1) -> MetadataState:
    """A topic in its first or second life; the last one may be deleted."""
    machine = a_machine()
    for life in range(1, lives + 1):
        topic = a_topic(machine, shard=shard)
        if life < lives or deleted:
            done(machine, delete_topic(topic))
    return machine.state


def a_router(*rows: tuple[Key, GroupId]) -> Router:
    router = Router()
    for key, shard in rows:
        router.insert(key, shard)
    return router


NOWHERE = MetadataMachine(a_machine().layout).state


def test_t11_an_unknown_routing_key_fails_loudly_and_goes_to_no_default_shard():
    router = a_router((FIRST, ONE))
    for namespace in (Namespace(1), Namespace(1 << 63), 2**64, -1):
        with pytest.raises(PartitionUnknown) as caught:
            router.route(namespace, 1, metadata())
        assert isinstance(caught.value, Unavailable)  # retryable
    with pytest.raises(PartitionUnknown):
        Router().route(0, 1, NOWHERE)


def test_what_was_found_once_is_found_anew_when_metadata_or_the_rows_change():
    machine = a_machine()
    topic = a_topic(machine, shard=1)
    router = a_router((FIRST, ONE))
    for _ in range(2):
        assert router.route(P0, FIRST.created, machine.state) == Route(ONE, FIRST.created)
    router.remove(FIRST)
    assert isinstance(router.route(P0, FIRST.created, machine.state), Awaited)
    router.insert(FIRST, ONE)
    assert router.route(P0, FIRST.created, machine.state) == Route(ONE, FIRST.created)
    with pytest.raises(Recreated):
        router.route(P0, FIRST.created, metadata(lives=2))
    assert router.route(P0, FIRST.created, machine.state) == Route(ONE, FIRST.created)
    done(machine, delete_topic(topic))
    with pytest.raises(PartitionUnknown):
        router.route(P0, FIRST.created, machine.state)


@given(
    namespace=st.integers(-(2**70), 2**70),
    created=st.integers(-(2**70), 2**70),
    lives=st.integers(1, 2),
    deleted=st.booleans(),
    rows=st.lists(st.sampled_from([(FIRST, ONE), (SECOND, TWO)])),
)
def test_any_number_gets_the_very_life_or_an_error(namespace, created, lives, deleted, rows):
    router = a_router(*rows)
    for place in (namespace, 0):
        for life in (created, 1, 3):
            try:
                found = router.route(place, life, metadata(lives=lives, deleted=deleted))
            except (PartitionUnknown, Recreated):
                continue
            assert place == P0
            assert found.created == life


def test_a_row_leads_to_its_shard():
    assert a_router((FIRST, TWO)).route(0, 1, metadata()) == Route(TWO, Revision(1))


def test_what_metadata_knows_and_no_shard_has_yet_is_awaited():
    assert Router().route(0, 1, metadata(shard=2)) == Awaited(TWO, Revision(1))


def test_a_new_life_is_awaited_while_the_row_of_the_old_one_stands():
    router = a_router((FIRST, ONE))
    known = metadata(lives=2, shard=2)
    assert router.route(0, 3, known) == Awaited(TWO, Revision(3))
    with pytest.raises(Recreated) as caught:
        router.route(0, 1, known)
    assert (caught.value.expected, caught.value.found) == (1, 3)


def test_an_older_life_is_recreated_and_a_later_one_is_not_known_yet():
    router = a_router((SECOND, ONE))
    known = metadata(lives=2)
    with pytest.raises(Recreated):
        router.route(0, 1, known)
    with pytest.raises(PartitionUnknown):
        router.route(0, 4, known)


def test_a_deleted_partition_is_fenced_before_its_row_is_gone():
    with pytest.raises(PartitionUnknown):
        a_router((FIRST, ONE)).route(0, 1, metadata(deleted=True))


@pytest.mark.parametrize("known", [NOWHERE, metadata()])
def test_metadata_that_lags_behind_a_row_does_not_hide_it(known):
    router = a_router((SECOND, TWO))
    assert router.route(0, 3, known) == Route(TWO, Revision(3))
    with pytest.raises(Recreated):
        router.route(0, 1, known)


def test_a_row_is_removed_by_its_life_only():
    router = a_router((FIRST, ONE), (SECOND, TWO))
    router.remove(FIRST)
    assert router.route(0, 3, metadata(lives=2)) == Route(TWO, Revision(3))
    router.remove(SECOND)
    router.remove(SECOND)
    assert len(router) == 0


def an_older_life_does_not_take_the_row_of_a_newer() -> None:
    router = a_router((SECOND, TWO), (FIRST, ONE))
    assert router.route(0, 3, metadata(lives=2)) == Route(TWO, Revision(3))


def test_an_older_life_does_not_take_the_row_of_a_newer():
    an_older_life_does_not_take_the_row_of_a_newer()


def test_that_the_last_row_wins_is_noticed():
    with planted("the last row wins", TESTED), pytest.raises(AssertionError):
        an_older_life_does_not_take_the_row_of_a_newer()


def test_each_shard_sees_its_own_rows():
    other = Key(Namespace(9), Revision(5))
    router = a_router((FIRST, ONE), (other, ONE), (SECOND, TWO))
    assert router.rows_of(ONE) == {other.namespace: other.created}
    assert router.rows_of(TWO) == {P0: SECOND.created}
    assert router.rows_of(GroupId(3)) == {}
    assert len(router) == 2
