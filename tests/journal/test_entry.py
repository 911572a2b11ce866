"""An entry is sealed once; whatever its bytes become, reading them ends in a value."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.journal.builders import CLUSTER, an_entry
from xxhash import xxh3_128_digest

from headrace.errors import BodyTooLarge
from headrace.journal.entry import (
    BODY_SIZE_MAX,
    CLUSTER_AT,
    HEADER_SIZE,
    Entry,
    Flaw,
    Header,
    decode,
    decode_header,
    peek_op,
    root,
    seal,
    size_of,
)
from headrace.model.ids import GroupId, Op, ReplicaId, View
from headrace.model.proposal import EntryProposal
from headrace_lab.counter.solo import SOLO

u64 = st.integers(0, 2**64 - 1)
u32 = st.integers(0, 2**32 - 1)
sixteen = st.binary(min_size=16, max_size=16)


def as_bytes(entry: Entry) -> bytes:
    return entry.sealed + bytes(entry.body)


@given(
    st.fixed_dictionaries(
        {
            "op": st.integers(1, 2**64 - 1).map(Op),
            "parent": sixteen,
            "view": u64.map(View),
            "timestamp": u64,
        }
    ),
    st.fixed_dictionaries(
        {
            "operation": st.integers(0, 2**16 - 1),
            "body": st.binary(max_size=2000),
            "writer": sixteen,
            "version": u64,
            "namespace": u64,
            "created": u64,
            "schema_id": u32,
            "row_count": u32,
        }
    ),
)
def test_every_field_comes_back(place, wanted):
    entry = seal(SOLO, EntryProposal(**wanted), **place)
    found = decode(as_bytes(entry))
    assert isinstance(found, Entry)
    assert found == entry
    header = found.header._asdict()
    assert bytes(found.body) == wanted.pop("body")
    assert {name: header[name] for name in place | wanted} == place | wanted
    assert (header["cluster"], header["group"]) == (SOLO.cluster, SOLO.group)


@given(st.binary(max_size=300))
def test_the_size_is_told_by_the_header_alone(body):
    entry = an_entry(body=body)
    assert size_of(entry.sealed) == len(as_bytes(entry))


@given(st.binary(max_size=600))
def test_arbitrary_bytes_are_a_flaw(data):
    assert isinstance(decode(data), Flaw)
    assert isinstance(decode_header(data), Flaw)


@given(st.data())
def test_no_single_byte_can_change_unnoticed(data):
    body = data.draw(st.binary(min_size=1, max_size=80))
    whole = bytearray(as_bytes(an_entry(body=body)))
    at = data.draw(st.integers(0, len(whole) - 1))
    whole[at] ^= data.draw(st.integers(1, 255))
    assert isinstance(decode(bytes(whole)), Flaw)


@pytest.mark.parametrize("size", [0, 1, 255, 256, 259])
def test_an_entry_cut_short_is_a_flaw(size):
    assert isinstance(decode(as_bytes(an_entry(body=b"body"))[:size]), Flaw)


def test_bytes_behind_the_body_are_a_flaw():
    found = decode(as_bytes(an_entry(body=b"body")) + b"\0")
    assert found == Flaw("entry size", HEADER_SIZE + 4, HEADER_SIZE + 5)


def test_a_flaw_says_what_was_expected_and_what_was_found():
    entry = an_entry(body=b"body")
    found = decode(entry.sealed + b"ydob")
    assert isinstance(found, Flaw)
    assert found.what == "body checksum"
    assert found.expected == entry.header.body_checksum.hex()
    assert found.found != found.expected


def test_a_body_over_the_limit_is_not_sealed():
    with pytest.raises(BodyTooLarge) as caught:
        an_entry(body=bytes(BODY_SIZE_MAX + 1))
    assert (caught.value.size, caught.value.limit) == (BODY_SIZE_MAX + 1, BODY_SIZE_MAX)


def test_a_header_that_claims_a_body_over_the_limit_is_a_flaw():
    header = bytearray(an_entry().sealed)
    header[140:144] = (BODY_SIZE_MAX + 1).to_bytes(4, "little")
    assert decode_header(resealed(header)) == Flaw(
        "body size at most", BODY_SIZE_MAX, BODY_SIZE_MAX + 1
    )


@pytest.mark.parametrize("at", [146, 148, 255])
def test_another_format_or_a_reserved_byte_in_use_is_a_flaw(at):
    header = bytearray(an_entry().sealed)
    header[at] ^= 2
    found = decode_header(resealed(header))
    assert isinstance(found, Flaw)
    assert found.what == "entry format"


def resealed(header: bytearray) -> bytes:
    return xxh3_128_digest(bytes(header[16:])) + bytes(header[16:])


def test_the_checksum_covers_the_body_through_the_header():
    one, other = an_entry(body=b"one"), an_entry(body=b"two")
    assert one.checksum != other.checksum


def test_no_group_continues_the_log_of_another():
    strangers = [
        replace(SOLO, cluster=bytes(16)),
        replace(SOLO, group=GroupId(2)),
    ]
    assert len({root(SOLO), *map(root, strangers)}) == 3


def test_replicas_of_one_group_share_their_root():
    assert root(replace(CLUSTER, replica=ReplicaId(2))) == root(CLUSTER)


def test_a_scan_can_find_a_header_by_its_cluster_and_peek_at_its_op():
    sealed = an_entry(op=77).sealed
    assert sealed[CLUSTER_AT : CLUSTER_AT + 16] == SOLO.cluster
    assert peek_op(b"\0" * 64 + sealed, 64) == 77


def test_a_body_may_be_any_kind_of_buffer():
    whole = an_entry(body=b"body")
    for body in (bytearray(b"body"), memoryview(b"body")):
        entry = an_entry(body=body)
        assert entry.checksum == whole.checksum
        assert isinstance(entry.header, Header)
