"""What a service manager is told, on sockets as it opens them."""

import os
import socket

import pytest

from headrace.server import notify as room
from headrace.server.notify import READY, STOPPING, notify, status


@pytest.fixture
def manager(tmp_path):
    """Listen as a manager does: on a path, or on a name without a file."""
    made = []

    def listen(name: str) -> socket.socket:
        receiver = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        receiver.bind(f"\0{name[1:]}" if name.startswith("@") else name)
        receiver.settimeout(5)
        made.append(receiver)
        return receiver

    yield listen
    for receiver in made:
        receiver.close()


@pytest.mark.parametrize("kind", ["path", "abstract"])
def test_a_state_arrives_as_one_datagram(manager, tmp_path, kind):
    name = str(tmp_path / "notify") if kind == "path" else f"@headrace-test-{os.getpid()}"
    receiver = manager(name)
    assert notify(READY, status("ready on\nport 7654"), environ={"NOTIFY_SOCKET": name})
    assert receiver.recv(1024) == b"READY=1\nSTATUS=ready on port 7654"
    assert notify(STOPPING, environ={"NOTIFY_SOCKET": name})
    assert receiver.recv(1024) == b"STOPPING=1"


@pytest.mark.parametrize("environ", [{}, {"NOTIFY_SOCKET": ""}])
def test_without_a_manager_nothing_is_sent_and_nothing_fails(environ, monkeypatch):
    monkeypatch.setattr(room.socket, "socket", None)
    assert notify(READY, environ=environ) is False


def test_a_manager_that_is_gone_is_an_event_and_no_error(tmp_path, caplog):
    name = str(tmp_path / "gone")
    assert notify(READY, environ={"NOTIFY_SOCKET": name}) is False
    (record,) = caplog.records
    assert record.msg == "server.notify.failed"
    assert record.fields["socket"] == name
