"""When a Seal is due."""

from headrace.node.group.seal_pace import SEAL_AGE_US, SealPace


def a_pace() -> SealPace:
    return SealPace(slots=64, seal_size=1_000)


def test_nothing_since_the_last_seal_is_never_due():
    pace = a_pace()
    assert not pace.is_due(now=10 * SEAL_AGE_US)
    pace.count(5_000, timestamp=1)
    assert pace.is_due(now=1)
    pace.sealed()
    assert not pace.is_due(now=10 * SEAL_AGE_US)


def test_bytes_make_a_seal_due():
    pace = a_pace()
    pace.count(999, timestamp=1)
    assert not pace.is_due(now=1)
    pace.count(1, timestamp=2)
    assert pace.is_due(now=2)


def test_ops_make_a_seal_due_while_four_windows_still_fit_into_the_ring():
    pace = a_pace()
    for number in range(15):
        pace.count(0, timestamp=number)
    assert not pace.is_due(now=15)
    pace.count(0, timestamp=16)
    assert pace.is_due(now=16)


def test_age_is_counted_from_the_first_entry_since_the_last_seal():
    pace = a_pace()
    pace.count(1, timestamp=100)
    pace.count(1, timestamp=200)
    assert not pace.is_due(now=99 + SEAL_AGE_US)
    assert pace.is_due(now=100 + SEAL_AGE_US)
    pace.sealed()
    pace.count(1, timestamp=300)
    assert not pace.is_due(now=299 + SEAL_AGE_US)


def test_freed_space_makes_a_seal_due_at_once():
    pace = a_pace()
    pace.count(1, timestamp=1, frees=True)
    assert pace.is_due(now=1)
    pace.sealed()
    pace.count(1, timestamp=2)
    assert not pace.is_due(now=2)
