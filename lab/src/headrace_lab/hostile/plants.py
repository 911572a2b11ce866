"""Planted bugs of a server, and the server that has one of them.

`python -m headrace_lab.hostile.plants NAME serve …` is `headrace serve …` with the bug of that
name. The code is replaced before any socket's module is loaded.
"""

import os
import runpy
import sys
from dataclasses import replace
from typing import Any, Final

from headrace.errors import BadFrame, HeadraceError
from headrace.model import arrow_message, batch
from headrace.node import node
from headrace.node.requests import admission
from headrace.node.requests.admission import BatchSchema
from headrace.partition import fetch
from headrace.partition.reader import Reader
from headrace.wire import codec, frames, msgpack
from headrace.wire.frames import FrameReader
from headrace.wire.messages import Message
from headrace.wire.msgpack import Buffer
from headrace.wire.write_messages import AppendRequest, StageRequest
from headrace_lab.harness.mutants import Mutant, planted

_LEAK_SIZE: Final = 2 * 1024 * 1024
_FAR: Final = 2**62

_judge = admission._judge
_unpack = msgpack.unpack
_decode = codec.decode
_fetch = fetch.fetch
_not_ours = frames._not_ours
_leaked: list[bytearray] = []


def _nothing(*_: object, **__: object) -> None:
    return None


def _judge_without_checksum(
    request: AppendRequest | StageRequest,
    body: Buffer,
    kind: BatchSchema,
    inflated_max: int,
    reserve: int = 0,
) -> bytes:
    return _judge(replace(request, checksum=b""), body, kind, inflated_max, reserve)


def _unpack_by_library(data: Buffer) -> msgpack.Value:
    try:
        return _unpack(data)
    except BadFrame as error:
        raise ValueError(str(error)) from error


def _decode_or_die(kind: int, data: Buffer) -> Message:
    if kind == 2**16 - 1:
        os._exit(3)
    return _decode(kind, data)


def _leaking(opening: bytes) -> BadFrame:
    _leaked.append(bytearray(b"\1") * _LEAK_SIZE)
    return _not_ours(opening)


def _fetch_by_library(reader: Reader, wanted: fetch.Wanted) -> fetch.FetchedRows:
    try:
        return _fetch(reader, wanted)
    except HeadraceError as error:
        raise ValueError(str(error)) from error


class _Unbounded(FrameReader):
    """Takes any size."""

    def received(self, size: int) -> list[frames.Frame]:
        self.meta_size_max = self.body_size_max = _FAR
        return super().received(size)


def _whole_body(self: FrameReader, size: int) -> None:
    came = self._view[self._start : self._end]
    body = memoryview(bytearray(size))
    body[: len(came)] = came
    self._body, self._body_end = body, len(came)
    self._start = self._end


_Patches = tuple[tuple[Any, str, Any], ...]

# By name: the stage that must catch it, and what is replaced.
_PLANTS: Final[dict[str, tuple[str, _Patches]]] = {
    "body CRC not checked": ("frames", ((frames, "check_body", _nothing),)),
    "sizes in a header not bounded": ("frames", ((frames, "FrameReader", _Unbounded),)),
    "exception out of a callback": ("frames", ((codec, "unpack", _unpack_by_library),)),
    "a kind that ends the process": ("frames", ((frames, "decode", _decode_or_die),)),
    "exception in a thread": ("frames", ((node, "fetch", _fetch_by_library),)),
    "memory of strangers not let go": ("strings", ((frames, "_not_ours", _leaking),)),
    "checksum not compared": ("bodies", ((admission, "_judge", _judge_without_checksum),)),
    "values not validated": ("bodies", ((batch, "_validate", _nothing),)),
    "inflated size not bounded": (
        "bodies",
        ((arrow_message, "INFLATED_SIZE_MAX", _FAR), (arrow_message, "_LENGTH_MAX", _FAR)),
    ),
    "memory for what is only promised": ("crowd", ((FrameReader, "_begin_body", _whole_body),)),
}
STAGE_OF: Final = {name: stage for name, (stage, _) in _PLANTS.items()}


def server_command(name: str) -> tuple[str, ...]:
    """Return what starts a server with this bug."""
    return (sys.executable, "-m", "headrace_lab.hostile.plants", name)


def main() -> None:
    """Run the command line behind the name, with the bug in it."""
    name = sys.argv.pop(1)
    with planted(name, MUTANTS):
        runpy.run_module("headrace", run_name="__main__")


MUTANTS: Final = tuple(
    Mutant(name, "hostile", patches) for name, (_, patches) in _PLANTS.items()
)

if __name__ == "__main__":
    main()
