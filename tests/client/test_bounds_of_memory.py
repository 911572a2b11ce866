"""Rows that wait have a bound in bytes, and no array is made of more than it can hold."""

import pyarrow as pa

from headrace.client.write.accumulator import Accumulator, Signal, batches_in, items_of
from headrace.client.write.convert import PIECE_ROWS, Converter, row_size, size_of
from headrace.client.write.sender import IN_FLIGHT_SIZE_MAX
from headrace.model.split import BODY_SIZE, gathered
from headrace.server.connections.limits import PeerLimits

MIB = 1024 * 1024
SCHEMA = pa.schema([("s", pa.string())])
LARGE = {"s": "x" * 60_000}


def test_a_basket_is_full_of_bytes_before_it_is_full_of_rows():
    basket = Accumulator(batch_rows=10_000, batch_size=4 * MIB, rows_max=40_000)
    signals = []
    while Signal.FULL not in signals and len(signals) < 1_000:
        signals.append(basket.put_row(LARGE))
    assert Signal.FULL in signals
    assert 16 * MIB - 70_000 < sum(row_size(row) for row in basket.take()[0]) <= 16 * MIB
    assert signals.index(Signal.SEND) * 60_000 < 4 * MIB
    assert basket.put_row(LARGE) is Signal.LINGER


def test_values_within_values_count():
    assert size_of({"l": ["x" * 100] * 10, "m": {"k": b"y" * 100}, "n": 1}) > 1_100
    knot = []
    knot.append(knot)
    assert size_of(knot) > 0


def test_many_rows_are_many_small_batches():
    batches = list(batches_in([[LARGE] * 100], Converter(SCHEMA)))
    assert sum(each.num_rows for each in batches) == 100
    assert max(each.nbytes for each in batches) < 2 * MIB
    rows = [{"s": "a"}] * (2 * PIECE_ROWS + 500)
    small = list(batches_in([rows], Converter(SCHEMA)))
    assert [each.num_rows for each in small] == [PIECE_ROWS, PIECE_ROWS, 500]


def test_a_long_list_is_put_in_piece_by_piece():
    items = list(items_of([LARGE] * 100, Converter(SCHEMA)))
    assert [row for item, _ in items for row in item] == [LARGE] * 100
    assert [sum(map(row_size, item)) for item, _ in items] == [size for _, size in items]
    assert max(size for _, size in items) <= MIB


def test_a_large_batch_is_put_together_with_nothing():
    small, large = (pa.record_batch({"s": ["x" * size]}) for size in (10, 5_000))
    found = [each.num_rows for each in gathered([small, small, large, small], 1_000)]
    assert found == [2, 1, 1]


def test_producers_at_full_speed_fit_into_a_node():
    # What does not fit may be refused as Busy, and is sent again: better to wait here.
    assert PeerLimits().queue_size_max >= 32 * IN_FLIGHT_SIZE_MAX
    assert 2 * BODY_SIZE <= IN_FLIGHT_SIZE_MAX  # one is synced while the next comes
