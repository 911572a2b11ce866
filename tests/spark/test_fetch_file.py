"""Copies of sealed segments through the wire: whole, resumed, or an error that says why."""

import asyncio
import io
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.client.doors import TOKEN, RunningNode
from tests.client.frame_server import TinyNode, listening
from tests.spark.sealing import checkpoint, seal_all
from xxhash import xxh3_128_digest

import headrace
from headrace.errors import (
    BadFrame,
    BadRequest,
    CorruptSegment,
    PartitionUnknown,
    Recreated,
    Refused,
    Unauthorized,
    VersionUnknown,
)
from headrace.node.requests import reads
from headrace.spark.worker import fetch_file as fetch_module
from headrace.spark.worker.fetch_file import SealedFile, fetch_file
from headrace.spark.worker.link import Link
from headrace.wire.file_messages import FetchFile, FileChunk
from headrace_lab.spark.proxy import Proxy

CHUNK = 64 * 1024
SCHEMA = {"id": "int64", "noise": "float64"}


def some_rows(seed: int, count: int = 40_000) -> pa.Table:
    noise = random.Random(seed)
    numbers = [noise.random() for _ in range(count)]
    return pa.table({"id": pa.array(range(count), pa.int64()), "noise": numbers})


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """A stopped log with two segments in one partition, and one in the other."""
    path = tmp_path_factory.mktemp("log") / "data"
    with headrace.open(path) as log:
        topic = log.create_topic("orders", SCHEMA, partitions=2)
        topic.append(some_rows(1), partition=0)
        topic.append(some_rows(2), partition=1)
        seal_all(path)
        topic.append(some_rows(3), partition=0)
        seal_all(path)
    return path


@pytest.fixture
def data(stopped, tmp_path):
    return shutil.copytree(stopped, tmp_path / "data")


@pytest.fixture
def node(data):
    with RunningNode(data) as node:
        yield node


@pytest.fixture
def log(node):
    with headrace.connect(node.address) as log:
        yield log


@pytest.fixture
def link(node):
    with Link(node.address, None, "test") as link:
        yield link


def files_of(lease) -> list[tuple[SealedFile, Path]]:
    """Return what a task gets of each leased file, and where the node has it."""
    return [
        (
            SealedFile(
                Path(file.path).name,
                one.namespace,
                one.created,
                file.start,
                file.end,
                file.size,
                file.digest,
            ),
            Path(file.path),
        )
        for one in lease.partitions
        for file in one.files
    ]


def fetched(link, lease_id, file) -> bytes:
    return b"".join(fetch_file(link, lease_id, file, chunk_size=CHUNK))


def test_a_copy_is_the_file_byte_for_byte(log, link):
    with log.topic("orders").lease_files() as lease:
        found = files_of(lease)
        assert len(found) == 3
        before = log.status()["work"]["fetched_bytes"]
        for file, path in found:
            whole = path.read_bytes()
            assert len(whole) == file.size > 3 * CHUNK
            assert xxh3_128_digest(whole) == file.digest
            assert fetched(link, lease.id, file) == whole
            assert b"".join(fetch_file(link, lease.id, file)) == whole
        sent = log.status()["work"]["fetched_bytes"] - before
        assert sent == 2 * sum(file.size for file, _ in found)
        assert pq.read_table(pa.BufferReader(whole)).num_rows == 40_000


def test_the_next_chunk_is_asked_for_while_one_is_used(node, log):
    with (
        Proxy(node.address, kept=(FetchFile,)) as proxy,
        Link(proxy.address, None, "test") as link,
        log.topic("orders").lease_files() as lease,
    ):
        ((file, _), *_) = files_of(lease)
        chunks = fetch_file(link, lease.id, file, chunk_size=CHUNK)
        next(chunks)
        end = time.monotonic() + 10
        while len(proxy.asked) < 2 and time.monotonic() < end:
            time.sleep(0.01)
        assert [each.request.position for each in proxy.asked] == [0, CHUNK]
        chunks.close()


def test_after_a_lost_connection_it_continues_where_it_was(node, log):
    with Proxy(node.address, kept=(FetchFile,)) as proxy:
        with (
            Link(proxy.address, None, "test") as link,
            log.topic("orders").lease_files() as one,
        ):
            ((file, path), *_) = files_of(one)
            chunks = fetch_file(link, one.id, file, chunk_size=CHUNK)
            copy = bytes(next(chunks)) + bytes(next(chunks))
            proxy.asked[-1].line.cut()
            copy += b"".join(chunks)
        assert copy == path.read_bytes()
        assert [each.request.position for each in proxy.asked].count(0) == 1
        assert link.connection_count == 2


def serving(data: Path, port: int) -> subprocess.Popen:
    command = [sys.executable, "-m", "headrace", "serve", "--data", str(data)]
    command += ["--listen", f"127.0.0.1:{port}", "--set", "listen.http="]
    return subprocess.Popen(command, stderr=subprocess.DEVNULL)


@contextmanager
def killed_at_the_end(process):
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def a_free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as made:
        return made.getsockname()[1]


def test_a_copy_outlives_a_killed_node(data):
    port = a_free_port()
    address = f"127.0.0.1:{port}"
    with killed_at_the_end(serving(data, port)) as node:
        log = headrace.connect(address, timeout="30s")
        lease = log.topic("orders").lease_files("3s")
        with log, Link(address, None, "test") as link:
            ((file, path), *_) = files_of(lease)
            chunks = fetch_file(link, lease.id, file, chunk_size=CHUNK)
            copy = bytes(next(chunks)) + bytes(next(chunks))
            node.send_signal(signal.SIGKILL)
            node.wait()
            with killed_at_the_end(serving(data, port)):
                copy += b"".join(chunks)
                assert copy == path.read_bytes()
                assert link.connection_count == 2
                assert lease.lost is None


def test_a_lease_that_ends_in_the_middle_ends_the_copy(log, link):
    lease = log.topic("orders").lease_files()
    ((file, _), *_) = files_of(lease)
    chunks = fetch_file(link, lease.id, file, chunk_size=CHUNK)
    next(chunks)
    lease.release()
    with pytest.raises(Refused, match="the lease expired, or the node restarted") as caught:
        list(chunks)
    assert caught.value.code == "lease_unknown"
    assert "take a new lease" in caught.value.hint


def test_a_new_connection_waits_for_a_lease_but_not_for_ever(log, link, monkeypatch):
    monkeypatch.setattr(fetch_module, "LEASE_SECONDS", 0.6)
    with log.topic("orders").lease_files() as lease:
        ((file, _), *_) = files_of(lease)
        began = time.monotonic()
        with pytest.raises(Refused, match="the lease expired"):
            fetched(link, bytes(16), file)
        assert time.monotonic() - began >= 0.6


@pytest.mark.parametrize("place", [0, 200_000, -1])
def test_a_byte_that_changed_on_the_node_s_disk_is_found_at_the_end(log, link, place):
    with log.topic("orders").lease_files() as lease:
        ((file, path), *_) = files_of(lease)
        whole = bytearray(path.read_bytes())
        whole[place] ^= 1
        path.write_bytes(whole)
        copied = io.BytesIO()
        with pytest.raises(CorruptSegment, match="other bytes than were sealed") as caught:
            copied.writelines(fetch_file(link, lease.id, file, chunk_size=CHUNK))
        assert 0 < copied.tell() < file.size  # no caller takes it for a whole one
        assert caught.value.path == file.name
        assert caught.value.expected == file.digest.hex()
        assert caught.value.found == xxh3_128_digest(whole).hex()


@pytest.mark.parametrize("damage", ["cut", "gone"])
def test_a_file_that_cannot_be_read_is_named_by_the_node(log, link, damage):
    with log.topic("orders").lease_files() as lease:
        ((file, path), *_) = files_of(lease)
        if damage == "cut":
            path.write_bytes(path.read_bytes()[: CHUNK + 100])
        else:
            path.unlink()
        said = {"cut": "another size than what was sealed", "gone": "cannot be opened"}
        with pytest.raises(CorruptSegment, match=said[damage]) as caught:
            fetched(link, lease.id, file)
        assert caught.value.path == str(path)
        found = [each for one in log.status()["groups"].values() for each in one["findings"]]
        assert any(file.name in each for each in found)


def test_a_chunk_whose_checksum_is_wrong_is_not_taken(log, link, monkeypatch):
    with log.topic("orders").lease_files() as lease:
        ((file, path), *_) = files_of(lease)
        monkeypatch.setattr(reads, "xxh3_128_digest", lambda data: bytes(16))
        with pytest.raises(BadFrame, match="bytes of a file from 0 on are not what was sent"):
            next(fetch_file(link, lease.id, file, chunk_size=CHUNK))
        monkeypatch.undo()
        assert fetched(link, lease.id, file) == path.read_bytes()


def test_a_chunk_of_another_place_is_not_taken(log, link, monkeypatch):
    with log.topic("orders").lease_files() as lease:
        ((file, _), *_) = files_of(lease)
        monkeypatch.setattr(
            reads, "FileChunk", lambda position, checksum: FileChunk(position + 1, checksum)
        )
        with pytest.raises(BadFrame, match=r"from 0 on, got 65536 from 1 on"):
            next(fetch_file(link, lease.id, file, chunk_size=CHUNK))


def test_a_trimmed_file_is_copied_as_long_as_its_lease_lasts(tmp_path, data):
    with headrace.open(data) as log, Link(_socket(data), None, "test") as link:
        topic = log.topic("orders")
        lease = topic.lease_files()
        ((file, path), *_) = files_of(lease)
        topic.trim(40_000, partition=0)
        checkpoint(data, 3)
        assert fetched(link, lease.id, file) == path.read_bytes()
        with topic.lease_files() as newer:
            assert file not in [each for each, _ in files_of(newer)]
            with pytest.raises(Refused, match=f"does not keep {file.name}") as caught:
                fetched(link, newer.id, file)
            assert caught.value.code == "file_not_leased"
        lease.release()
        checkpoint(data, 3)
        assert not path.exists()
        with pytest.raises(Refused, match="the lease expired"):
            fetched(link, lease.id, file)


def _socket(data: Path) -> str:
    return f"unix:{data}/headrace.sock"


def test_a_file_that_was_sealed_again_is_named(log, link):
    with log.topic("orders").lease_files() as lease:
        ((file, _), *_) = files_of(lease)
        with pytest.raises(Refused, match="was sealed again: expected digest 0000") as caught:
            fetched(link, lease.id, replace(file, digest=bytes(16)))
        assert caught.value.code == "file_replaced"


def test_a_file_of_an_earlier_life_is_refused(log, link, monkeypatch):
    topic = log.topic("orders")
    with topic.lease_files() as lease:
        ((file, path), *_) = files_of(lease)
        assert fetched(link, lease.id, file) == path.read_bytes()
        topic.delete()
        again = log.create_topic("orders", SCHEMA, partitions=2)
        monkeypatch.setattr(link, "ask", _once(link.ask))
        with pytest.raises((PartitionUnknown, Recreated), match=f"{file.namespace:x}"):
            fetched(link, lease.id, file)
        again.append(some_rows(9, 10))
        with again.lease_files() as newer:
            assert files_of(newer) == []


def _once(ask):
    return lambda *args, **more: ask(*args, **more, seconds=0.1)


@pytest.mark.parametrize("place", [-1, 0, 1, 2**63])
def test_a_position_that_is_not_in_the_file_is_refused(log, link, place):
    with log.topic("orders").lease_files() as lease:
        ((file, _), *_) = files_of(lease)
        position = place if place in (-1, 2**63) else file.size + place
        request = fetch_module._request(lease.id, file, position, CHUNK)
        with pytest.raises(
            BadRequest, match=rf"byte {position} is not in {file.name}"
        ) as caught:
            link.ask(request, FileChunk)
        assert "Fetch from byte 0 on" in caught.value.hint


def test_one_chunk_is_never_larger_than_an_answer_may_be(data):
    with (
        RunningNode(data, limits__fetch_size="64KiB") as node,
        headrace.connect(node.address) as log,
        Link(node.address, None, "test") as link,
        log.topic("orders").lease_files() as lease,
    ):
        ((file, path), *_) = files_of(lease)
        chunks = list(fetch_file(link, lease.id, file))
        assert {len(each) for each in chunks[:-1]} == {64 * 1024}
        assert b"".join(chunks) == path.read_bytes()


def test_a_wrong_token_gets_nothing(data, tmp_path):
    right, wrong = tmp_path / "right", tmp_path / "wrong"
    right.write_text(TOKEN)
    wrong.write_text("not the one")
    with (
        RunningNode(data, auth__token=TOKEN) as node,
        headrace.connect(node.address, token=TOKEN) as log,
        log.topic("orders").lease_files() as lease,
        Link(node.address, str(wrong), "test") as stranger,
        Link(node.address, str(right), "test") as link,
    ):
        ((file, path), *_) = files_of(lease)
        with pytest.raises(Unauthorized, match="the token is not this node's"):
            fetched(stranger, lease.id, file)
        assert fetched(link, lease.id, file) == path.read_bytes()


def test_an_older_node_is_not_asked():
    node = TinyNode(version=3)

    def fetch(address):
        with Link(address, None, "test") as link:
            fetched(link, bytes(16), SealedFile("x", 1, 1, 0, 1, 1, bytes(16)))

    async def scene():
        async with listening(node) as address:
            await asyncio.to_thread(fetch, address)

    with pytest.raises(VersionUnknown, match="not support fetching files; version 4 does"):
        asyncio.run(scene())
    assert len(node.heard) == 1  # Hello


def test_without_xxhash_it_says_what_to_install(log, link, monkeypatch):
    with log.topic("orders").lease_files() as lease:
        ((file, _), *_) = files_of(lease)
        monkeypatch.setitem(sys.modules, "xxhash", None)
        with pytest.raises(BadRequest, match="Install xxhash"):
            fetched(link, lease.id, file)
