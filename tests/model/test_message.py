"""The numbers of an Arrow message are compared with its bytes before anything trusts them."""

import struct

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import BadBatch
from headrace.model.arrow_message import INFLATED_SIZE_MAX, ArrowMessage, parse

ROWS = 300
SCHEMA = pa.schema([("i", pa.int64()), ("s", pa.string())])
NODES, BUFFERS = 2, 5
NULLS = 100


def a_batch() -> pa.RecordBatch:
    numbers = pa.array([None if i % 3 == 0 else i for i in range(ROWS)], pa.int64())
    return pa.record_batch([numbers, pa.array(["text"] * ROWS)], schema=SCHEMA)


def messages(batch: pa.RecordBatch, **options) -> list[bytes]:
    """Return the schema's message and the batch's, as a stream has them."""
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(**options)
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    stream = sink.getvalue().to_pybytes()
    reader = pa.BufferReader(stream)
    cuts = [0]
    for _ in range(2):
        pa.ipc.read_message(reader)
        cuts.append(reader.tell())
    return [stream[cuts[0] : cuts[1]], stream[cuts[1] : cuts[2]]]


def a_body(**options) -> bytes:
    return messages(a_batch(), **options)[1]


def parsed(body: bytes) -> ArrowMessage:
    return parse(memoryview(body), node_count=NODES, buffer_count=BUFFERS)


def changed(body: bytes, old: bytes, new: bytes) -> bytes:
    assert len(old) == len(new)
    assert body.count(old) == 1, "the place to change is not the only one of its kind"
    return body.replace(old, new)


def pair(first: int, second: int) -> bytes:
    return struct.pack("<qq", first, second)


def refusal(body: bytes) -> str:
    with pytest.raises(BadBatch) as caught:
        parsed(body)
    assert caught.value.hint
    return str(caught.value)


class TestWhatIsRead:
    def test_the_numbers_are_those_that_were_written(self):
        body = a_body()
        found = parsed(body)
        column, text = a_batch().columns
        assert found.row_count == ROWS
        assert found.nodes == ((ROWS, NULLS), (ROWS, 0))
        assert not found.is_compressed
        pieces = [body[at : at + size] for at, size in found.buffers]
        assert pieces[1] == column.buffers()[1].to_pybytes()
        assert pieces[2] == b""
        assert pieces[4] == b"text" * ROWS == text.buffers()[2].to_pybytes()
        assert found.inflated_size == sum(size for _, size in found.buffers)

    @pytest.mark.parametrize("codec", ["lz4", "zstd"])
    def test_a_compressed_one_says_what_it_inflates_to(self, codec):
        body = a_body(compression=codec)
        assert len(body) < len(a_body())
        found = parsed(body)
        assert found.is_compressed
        assert found.inflated_size == parsed(a_body()).inflated_size

    def test_it_reads_memory_that_is_not_its_own(self):
        around = b"before" + a_body() + b"after"
        inside = memoryview(around)[len(b"before") : -len(b"after")]
        assert parse(inside, node_count=NODES, buffer_count=BUFFERS) == parsed(a_body())


class TestDeclaredSizes:
    def declared(self, *sizes: int) -> bytes:
        """Return a compressed body whose values claim to inflate to `sizes`."""
        body = a_body(compression="zstd")
        for old, new in zip((ROWS * 8, ROWS * 4 + 4), sizes, strict=False):
            at, magic = struct.pack("<q", old), b"\x28\xb5\x2f\xfd"
            body = changed(body, at + magic, struct.pack("<q", new) + magic)
        return body

    def test_one_buffer_may_inflate_to_the_limit_and_no_further(self):
        others = parsed(a_body()).inflated_size - ROWS * 8
        assert parsed(self.declared(INFLATED_SIZE_MAX - others)).is_compressed
        assert "decompresses to" in refusal(self.declared(INFLATED_SIZE_MAX - others + 1))

    def test_the_sum_of_all_is_limited(self):
        half = INFLATED_SIZE_MAX // 2
        assert parsed(self.declared(half)).is_compressed
        assert "decompresses to" in refusal(self.declared(half, half))

    def test_a_buffer_stored_raw_counts_as_it_is(self):
        whole = parsed(self.declared(ROWS * 8))
        stored = whole.buffers[1][1] - 8
        assert parsed(self.declared(-1)).inflated_size == (
            whole.inflated_size - ROWS * 8 + stored
        )

    @pytest.mark.parametrize("size", [-2, -(2**63), 2**63 - 1, 2**40])
    def test_a_size_that_cannot_be_is_refused(self, size):
        assert "decompresses to" in refusal(self.declared(size))

    def test_a_compressed_buffer_without_room_for_its_size_is_refused(self):
        body = a_body(compression="zstd")
        at, size = parsed(body).buffers[-1]
        start = len(body) - self.buffers_size(body)
        short = changed(body, pair(at - start, size), pair(at - start, 7))
        assert "lacks its size prefix" in refusal(short)

    def buffers_size(self, body: bytes) -> int:
        return len(body) - 8 - struct.unpack_from("<I", body, 4)[0]


class TestRefusals:
    def test_a_message_cut_short_is_refused_at_every_length(self):
        body = a_body()
        for size in range(len(body)):
            refusal(body[:size])

    @pytest.mark.parametrize("more", [b"\0", bytes(8), bytes(64), a_body()])
    def test_bytes_beyond_the_message_are_refused(self, more):
        assert "the message declares" in refusal(a_body() + more)

    def test_another_kind_of_message_is_refused(self):
        assert "record batch" in refusal(messages(a_batch())[0])

    def test_a_dictionary_is_refused(self):
        batch = pa.record_batch({"d": pa.array(["a", "b"]).dictionary_encode()})
        assert "record batch" in refusal(messages(batch)[1])

    def test_older_metadata_is_refused(self):
        body = a_body(metadata_version=pa.ipc.MetadataVersion.V4)
        assert "expected version V5" in refusal(body)

    def test_the_old_frame_without_continuation_is_refused(self):
        assert "not an Arrow message" in refusal(a_body(use_legacy_format=True))

    def test_no_metadata_is_refused(self):
        assert "metadata size: 0 bytes" in refusal(struct.pack("<II", 0xFFFFFFFF, 0))

    @pytest.mark.parametrize(("nodes", "buffers"), [(1, 5), (3, 5), (2, 4), (2, 6), (0, 0)])
    def test_another_count_of_nodes_or_buffers_is_refused(self, nodes, buffers):
        with pytest.raises(BadBatch, match="the schema needs"):
            parse(memoryview(a_body()), node_count=nodes, buffer_count=buffers)

    @pytest.mark.parametrize("count", [2**31, 2**32 - 1])
    def test_a_count_beyond_the_metadata_allocates_nothing(self, count):
        body = a_body()
        vector = struct.pack("<I", NODES) + pair(ROWS, NULLS)
        huge = changed(body, vector, struct.pack("<I", count) + pair(ROWS, NULLS))
        with pytest.raises(BadBatch, match="outside the metadata"):
            parse(memoryview(huge), node_count=count, buffer_count=BUFFERS)

    @pytest.mark.parametrize(
        ("length", "null_count"),
        [(-1, 0), (ROWS, -1), (ROWS, ROWS + 1), (2**62, 0), (2**63 - 1, 2**63 - 1)],
    )
    def test_a_node_that_cannot_be_is_refused(self, length, null_count):
        body = changed(a_body(), pair(ROWS, NULLS), pair(length, null_count))
        assert "slots" in refusal(body)

    @pytest.mark.parametrize(
        ("at", "size", "why"),
        [
            (-8, 8, "buffer out of bounds: "),
            (0, -1, "buffer out of bounds: "),
            (2**63 - 1, 1, "buffer out of bounds: "),
            (0, 2**63 - 1, "buffer out of bounds: "),
            (2**63 - 8, 2**63 - 8, "buffer out of bounds: "),
            (0, ROWS * 4, "overlaps"),
            (1, 8, "overlaps"),
        ],
    )
    def test_a_buffer_that_cannot_be_is_refused(self, at, size, why):
        body = a_body()
        found = parsed(body).buffers[-1]
        start = 8 + struct.unpack_from("<I", body, 4)[0]
        assert why in refusal(changed(body, pair(found[0] - start, found[1]), pair(at, size)))

    @pytest.mark.parametrize("size", [0, 2**40, -1])
    def test_a_body_size_that_is_not_true_is_refused(self, size):
        body = a_body()
        true = len(body) - 8 - struct.unpack_from("<I", body, 4)[0]
        lie = changed(body, struct.pack("<q", true), struct.pack("<q", size))
        assert "the message declares" in refusal(lie)


class TestRubble:
    @given(st.binary(max_size=400))
    def test_arbitrary_bytes_are_refused(self, data):
        refusal(data)

    @given(st.binary(max_size=400).map(lambda data: data + bytes(-len(data) % 8)))
    def test_arbitrary_metadata_is_refused(self, data):
        refusal(struct.pack("<II", 0xFFFFFFFF, len(data)) + data)

    @pytest.mark.parametrize("options", [{}, {"compression": "lz4"}, {"compression": "zstd"}])
    def test_a_changed_byte_is_read_inside_the_message_or_refused(self, options):
        body = a_body(**options)
        metadata_end = 8 + struct.unpack_from("<I", body, 4)[0]
        for place in range(metadata_end):
            for mask in (1, 2, 4, 8, 16, 32, 64, 128, 255):
                other = bytearray(body)
                other[place] ^= mask
                try:
                    found = parsed(bytes(other))
                except BadBatch:
                    continue
                assert all(0 <= at <= at + size <= len(body) for at, size in found.buffers)
                assert found.inflated_size <= INFLATED_SIZE_MAX
