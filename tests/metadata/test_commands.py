"""Commands survive their bytes, and bytes that are no command are refused as a value."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.metadata.builders import NOW, ONE_OF_EACH, a_machine

from headrace.metadata.commands import OPERATION_FIRST, decode, encode
from headrace.metadata.results import (
    MESSAGES,
    MetadataCode,
    MetadataRefusal,
    Result,
    Unchanged,
    refuse,
)
from headrace.model.ids import Op

kinds = pytest.mark.parametrize("command", ONE_OF_EACH, ids=lambda each: type(each).__name__)
operations = st.integers(0, 2**16 - 1) | st.integers(14, 24)
# What msgpack can say, and so also arrays that are nearly commands.
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["default", "orders"])
    | st.binary(max_size=8),
    lambda inner: st.lists(inner, max_size=8) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=12,
)
bodies = st.binary(max_size=64) | values.map(msgspec.msgpack.encode)


@kinds
def test_a_command_is_read_as_it_was_meant(command):
    body = encode(command)
    assert decode(command.operation, body) == command
    assert decode(command.operation, memoryview(bytearray(body))) == command


def test_operations_are_distinct_and_stay_as_they_are():
    assert [command.operation for command in ONE_OF_EACH] == list(range(16, 26))


@kinds
def test_a_body_cut_anywhere_is_malformed(command):
    body = encode(command)
    for size in range(len(body)):
        assert decode(command.operation, body[:size]) == malformed(command.operation)


@kinds
def test_a_body_with_more_or_fewer_fields_is_malformed(command):
    fields = list(msgspec.structs.astuple(command))
    assert decode(command.operation, msgspec.msgpack.encode(fields)) == command
    for wrong in ([*fields, 0], fields[:-1], [*fields[::-1], None], {}, None):
        body = msgspec.msgpack.encode(wrong)
        assert decode(command.operation, body) == malformed(command.operation)
    assert decode(command.operation, encode(command) + b"\0") == malformed(command.operation)


def test_a_name_that_is_not_utf8_is_malformed():
    assert decode(16, b"\x91\xa1\xff") == malformed(16)


def test_arrays_that_never_end_are_malformed():
    assert decode(16, b"\x91" * 100_000) == malformed(16)
    assert decode(18, b"\xdd\xff\xff\xff\xff") == malformed(18)


@given(operations, st.integers(0, 2**64 - 1), bodies)
def test_apply_of_any_bytes_ends_in_a_result(operation, timestamp, body):
    machine = a_machine()
    before = machine.digest()
    result = machine.apply(operation, timestamp, body, Op(1), bytes(16))
    assert isinstance(result, Result)
    if isinstance(result, MetadataRefusal):
        assert result.message
        assert machine.digest() == before
    if operation < OPERATION_FIRST:
        assert result == Unchanged()


@given(st.data())
def test_apply_of_a_command_with_any_flipped_byte_ends_in_a_result(data):
    command = data.draw(st.sampled_from(ONE_OF_EACH))
    body = bytearray(encode(command))
    body[data.draw(st.integers(0, len(body) - 1))] ^= data.draw(st.integers(1, 255))
    machine = a_machine()
    assert isinstance(machine.apply(command.operation, NOW, body, Op(1), bytes(16)), Result)
    machine.restore(machine.snapshot())


def test_a_seal_and_what_else_belongs_to_the_group_changes_nothing():
    machine = a_machine()
    before = machine.digest()
    for operation in range(OPERATION_FIRST):
        answer = machine.apply(operation, NOW, b"anything", Op(1), bytes(16))
        assert answer == Unchanged()
    assert machine.digest() == before


def test_an_operation_nobody_knows_is_refused_by_its_number():
    assert decode(39, b"") == refuse(MetadataCode.OPERATION_UNKNOWN, operation=39)
    assert decode(39, b"").message == "unknown metadata operation 39"


def test_every_code_has_words():
    assert set(MESSAGES) == set(MetadataCode)


def malformed(operation: int) -> MetadataRefusal:
    return refuse(MetadataCode.MALFORMED, operation=operation)
