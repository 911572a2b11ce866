"""A listener on a socket file: who may open it, what it replaces, and what it leaves."""

import os
import socket
import stat
from pathlib import Path

import pytest
from tests.server.builders import (
    LOOPS,
    Desk,
    Ledger,
    Peer,
    a_dead_socket_file,
    a_listener,
    a_peer,
    an_append,
    run,
    some_limits,
    until,
)

from headrace.errors import BadConfig
from headrace.model.results import AppendResult
from headrace.server.connections.traffic import Traffic
from headrace.server.connections.unix import listen_unix, short_address
from headrace.wire.address import SOCKET_PATH_SIZE_MAX


@pytest.mark.parametrize("loop", LOOPS)
def test_rows_go_through_a_socket_file_that_only_its_owner_can_open(tmp_path, loop):
    async def scene():
        ledger, path = Ledger(), tmp_path / "node.sock"
        mask = os.umask(0)
        try:
            listener = await listen_unix(ledger, path, some_limits())
        finally:
            os.umask(mask)
        assert stat.S_ISSOCK(path.lstat().st_mode)
        assert stat.S_IMODE(path.lstat().st_mode) == 0o600
        assert listener.address == f"unix:{path}"
        async with await a_peer(listener) as peer:
            assert not peer.welcome.needs_proof
            assert await peer.ask(an_append(), body=[bytes(200_000)]) == AppendResult(
                0, 1, False
            )
        assert ledger.bodies == [bytes(200_000)]
        await listener.close(1)
        assert not path.exists()

    run(scene(), loop)


@pytest.mark.parametrize("loop", LOOPS)
def test_the_file_of_a_dead_process_is_replaced(tmp_path, loop):
    async def scene():
        path = tmp_path / "node.sock"
        a_dead_socket_file(path)
        with socket.socket(socket.AF_UNIX) as probe, pytest.raises(ConnectionRefusedError):
            probe.connect(str(path))
        listener = await listen_unix(Ledger(), path, some_limits())
        async with await a_peer(listener) as peer:
            assert await peer.is_alive()
        await listener.close(1)

    run(scene(), loop)


def test_the_file_of_a_living_process_is_left_alone(tmp_path):
    async def scene():
        path = tmp_path / "node.sock"
        first = await listen_unix(Ledger(), path, some_limits())
        with pytest.raises(BadConfig, match="another process listens"):
            await listen_unix(Ledger(), path, some_limits())
        async with await a_peer(first) as peer:
            assert await peer.is_alive()
        await first.close(1)

    run(scene())


def test_a_process_too_busy_to_accept_is_alive(tmp_path):
    async def scene():
        path = tmp_path / "node.sock"
        with socket.socket(socket.AF_UNIX) as busy, socket.socket(socket.AF_UNIX) as waiting:
            busy.bind(str(path))
            busy.listen(0)
            waiting.connect(str(path))
            with pytest.raises(BadConfig, match="another process listens"):
                await listen_unix(Ledger(), path, some_limits())
            assert path.exists()

    run(scene())


def _a_file(path: Path) -> None:
    path.write_bytes(b"precious")


def _a_link(path: Path) -> None:
    a_dead_socket_file(path.with_name("elsewhere.sock"))
    path.symlink_to("elsewhere.sock")


@pytest.mark.parametrize("make", [_a_file, Path.mkdir, os.mkfifo, _a_link])
def test_any_other_kind_of_file_is_left_alone(tmp_path, make):
    async def scene():
        path = tmp_path / "node.sock"
        make(path)
        before = path.lstat()
        with pytest.raises(BadConfig, match="is not a socket"):
            await listen_unix(Ledger(), path, some_limits())
        assert (path.lstat().st_ino, path.lstat().st_mode) == (before.st_ino, before.st_mode)

    run(scene())


@pytest.mark.parametrize("loop", LOOPS)
def test_a_path_longer_than_the_system_takes_works(tmp_path, loop):
    async def scene():
        folder = tmp_path / ("long" * 30) / ("longer" * 20)
        folder.mkdir(parents=True)
        path = folder / "node.sock"
        assert len(os.fsencode(path)) > SOCKET_PATH_SIZE_MAX
        for _ in range(2):  # the second finds what the first left, as a killed process does
            listener = await listen_unix(Ledger(), path, some_limits())
            assert stat.S_IMODE(path.lstat().st_mode) == 0o600
            with short_address(path) as address, socket.socket(socket.AF_UNIX) as sock:
                sock.connect(address)
                sock.setblocking(False)
                peer = Peer(sock)
                await peer.greet()
                assert await peer.is_alive()
            kept = path.with_name("kept")
            path.rename(kept)
            await listener.close(1)
            kept.rename(path)
        assert path.exists()

    run(scene(), loop)


@pytest.mark.parametrize("size", [SOCKET_PATH_SIZE_MAX, SOCKET_PATH_SIZE_MAX + 1])
def test_a_path_just_at_the_limit_works_and_so_does_one_beyond(tmp_path, size):
    async def scene():
        room = size - len(os.fsencode(tmp_path)) - 1
        path = tmp_path / ("s" * room)
        assert len(os.fsencode(path)) == size
        listener = await listen_unix(Ledger(), path, some_limits())
        assert path.exists()
        await listener.close(0)

    run(scene())


@pytest.mark.parametrize("name", ["missing/node.sock", "n" * 200, "n" * 300, "zero\0byte"])
def test_a_path_that_cannot_be_is_a_config_error(tmp_path, name):
    async def scene():
        with pytest.raises(BadConfig) as caught:
            await listen_unix(Ledger(), tmp_path / name, some_limits())
        assert caught.value.key == "listen.socket"

    run(scene())
    assert list(tmp_path.iterdir()) == []


def test_closing_removes_no_file_but_its_own(tmp_path):
    async def scene():
        path = tmp_path / "node.sock"
        listener = await listen_unix(Ledger(), path, some_limits())
        path.unlink()
        path.write_bytes(b"somebody else's")
        await listener.close(1)
        assert path.read_bytes() == b"somebody else's"

    run(scene())


def test_two_listeners_of_a_node_share_its_bounds(tmp_path):
    async def scene():
        desk, traffic, limits = Desk(), Traffic(), some_limits(queue_size_max=1000)
        path = tmp_path / "node.sock"
        local = await listen_unix(desk, path, limits, traffic=traffic)
        async with a_listener(desk, limits, traffic=traffic) as remote:
            async with await a_peer(local) as one, await a_peer(remote) as two:
                await one.send(an_append(), 1, [bytes(900)])
                await until(lambda: len(desk.open) == 1)
                assert (await two.ask(an_append(), 2, [bytes(900)])).code == "Busy"
                assert traffic.connections_open == 2
                desk.answer_all()
                assert await one.receive() == (1, AppendResult(1, 2, False))
            await local.close(1)

    run(scene())
