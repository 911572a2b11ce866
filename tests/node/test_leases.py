"""The table of leases: what it takes, what it refuses, and when it lets files go."""

import pytest

from headrace.errors import BadRequest, Busy, Refused
from headrace.node import leases
from headrace.node.leases import DURATION_MS_MAX, FILE_COUNT_MAX, HeldLease, Leases

SECOND = 1_000


def an_id(number: int) -> bytes:
    return number.to_bytes(16, "big")


def a_file(name: str) -> HeldLease:
    return HeldLease(1, name, 100, bytes(16))


def a_table(*names: str, now: float = 0.0) -> Leases:
    """Return a table with a lease of 10 seconds on each of these files."""
    table = Leases()
    for number, name in enumerate(names):
        table.take(an_id(number), 10 * SECOND, (a_file(name),), now)
    return table


def test_a_lease_ends_at_its_deadline_and_not_before():
    table = a_table("a", now=5.0)
    assert table.expire(14.999) == []
    assert table.expire(15.0) == [a_file("a")]
    assert len(table) == 0
    assert table.expire(99.0) == []


def test_a_renewed_lease_counts_from_the_renewal():
    table = a_table("a")
    table.renew(an_id(0), 10 * SECOND, now=9.0)
    assert table.expire(10.0) == []
    assert table.expire(19.0) == [a_file("a")]


def test_a_lease_that_has_ended_cannot_be_renewed():
    table = a_table("a")
    for now in (10.0, 11.0):  # at its deadline too, though no tick has come yet
        with pytest.raises(Refused, match="the lease expired") as caught:
            table.renew(an_id(0), 10 * SECOND, now=now)
        assert caught.value.code == "lease_unknown"
    assert table.expire(11.0) == [a_file("a")]


def test_a_release_gives_the_files_once():
    table = a_table("a", "b")
    assert table.release(an_id(1)) == (a_file("b"),)
    assert table.release(an_id(1)) == ()
    assert len(table) == 1


def test_a_lease_of_a_known_id_replaces_it():
    table = a_table("a")
    assert table.take(an_id(0), 10 * SECOND, (a_file("b"),), 5.0) == (a_file("a"),)
    assert set(table.files()) == {a_file("b")}
    assert table.expire(15.0) == [a_file("b")]


def test_a_file_of_two_leases_is_counted_once():
    assert len(a_table("a", "a").files()) == 1


@pytest.mark.parametrize("duration_ms", [-1, 0, 999, DURATION_MS_MAX + 1, 2**64 - 1])
def test_no_lease_is_too_short_or_too_long(duration_ms):
    table = a_table("a")
    with pytest.raises(BadRequest, match=r"a lease must last 1,000 to 600,000 ms"):
        table.check(an_id(9), duration_ms, 1)
    with pytest.raises(BadRequest, match=r"a lease must last 1,000 to 600,000 ms"):
        table.renew(an_id(0), duration_ms, now=0.0)


@pytest.mark.parametrize("lease_id", [b"", bytes(15), bytes(17)])
def test_an_id_has_16_bytes(lease_id):
    for refused in (
        lambda: a_table().check(lease_id, SECOND, 1),
        lambda: a_table().renew(lease_id, SECOND, 0.0),
        lambda: a_table().release(lease_id),
    ):
        with pytest.raises(BadRequest, match="a lease ID must have 16 bytes"):
            refused()


def test_there_is_a_bound_on_leases_but_not_for_one_that_is_taken_again(monkeypatch):
    monkeypatch.setattr(leases, "LEASE_COUNT_MAX", 2)
    table = a_table("a", "b")
    with pytest.raises(Busy, match="this node has reached its limit of 2 leases"):
        table.check(an_id(2), SECOND, 1)
    table.check(an_id(1), SECOND, 1)
    table.release(an_id(0))
    table.check(an_id(2), SECOND, 1)


def test_there_is_a_bound_on_the_files_of_a_lease():
    Leases().check(an_id(0), SECOND, FILE_COUNT_MAX)
    with pytest.raises(BadRequest, match="Lease fewer partitions at a time"):
        Leases().check(an_id(0), SECOND, FILE_COUNT_MAX + 1)
