"""Requests about partitions, as operations of the log; their results, as replies."""

from collections.abc import Callable
from typing import Any, assert_never

from headrace.errors import BadRequest, HeadraceError
from headrace.model.ids import KEEP_NEXT, Offset
from headrace.node.requests.outcomes import partition_error
from headrace.partition.machine import operations, results
from headrace.partition.machine.operations import STAGE_ID_SIZE, Command, Receipt
from headrace.vsr.peer_messages import NOBODY, EntryProposal
from headrace.wire import read_messages, write_messages
from headrace.wire.messages import Reply

Written = (
    write_messages.PublishRequest
    | write_messages.DiscardRequest
    | write_messages.TrimRequest
    | write_messages.PurgeRequest
    | read_messages.StoreCursorRequest
    | read_messages.DeleteCursorRequest
)
_NUMBER_MAX = 2**63 - 1  # of what counts in the log: it fits where it is kept


def to_log(request: Written) -> EntryProposal:
    """Return what is proposed for a request without rows, or raise BadRequest."""
    writer, version = NOBODY, 0
    if isinstance(request, write_messages.PublishRequest | write_messages.DiscardRequest):
        writer = _writer(request.writer)
    if isinstance(request, write_messages.PublishRequest):
        version = _number("version", request.version)
    command = _command(request)
    return EntryProposal(
        command.operation,
        operations.encode(command),
        b"",
        writer,
        version,
        request.namespace,
        request.created,
    )


def _command(request: Written) -> Command:
    match request:
        case write_messages.PublishRequest():
            stages = tuple(
                Receipt(
                    _stage_id(one.stage_id),
                    _number("op_count", one.op_count),
                    _number("row_count", one.row_count),
                    one.digest,
                )
                for one in request.stages
            )
            return operations.Publish(stages)
        case write_messages.DiscardRequest():
            return operations.Discard(tuple(map(_stage_id, request.stage_ids)))
        case write_messages.TrimRequest():
            first = Offset(_number("first", request.first))
            return operations.Trim(first, request.past_hold)
        case write_messages.PurgeRequest():
            return operations.Purge()
        case read_messages.StoreCursorRequest():
            following = Offset(request.next)
            if following != KEEP_NEXT:
                _number("next", following)
            generation = _number("generation", request.generation)
            return operations.StoreCursor(request.group, following, generation, request.hold)
        case read_messages.DeleteCursorRequest():
            generation = _number("generation", request.generation)
            return operations.DeleteCursor(request.group, generation)
        case _:
            assert_never(request)


def to_reply(result: object) -> Reply | HeadraceError:
    """Return the answer that a result of the machine becomes."""
    if isinstance(result, HeadraceError):
        return result
    return _REPLIES[type(result)](result)


def _staged(result: results.StageResult) -> write_messages.StageReply:
    found = result.receipt
    receipt = write_messages.StageReceipt(
        found.stage_id, found.op_count, found.row_count, found.digest
    )
    return write_messages.StageReply(receipt, result.repeated)


def _published(result: results.PublishResult) -> write_messages.PublishReply:
    given = tuple(
        write_messages.PublishedRange(one.namespace, one.start, one.end)
        for one in result.ranges
    )
    return write_messages.PublishReply(given, result.repeated, result.same)


def _trimmed(result: results.TrimResult) -> write_messages.TrimReply:
    holds = tuple((hold.group, hold.next) for hold in result.holds)
    return write_messages.TrimReply(result.first, holds)


_REPLIES: dict[type, Callable[[Any], Reply | HeadraceError]] = {
    results.Refusal: partition_error,
    results.AppendResult: lambda one: write_messages.AppendReply(
        one.start, one.end, one.repeated
    ),
    results.StageResult: _staged,
    results.PublishResult: _published,
    results.DiscardResult: lambda one: write_messages.DiscardReply(one.count),
    results.TrimResult: _trimmed,
    results.CursorStored: lambda one: read_messages.StoreCursorReply(one.next),
    results.CursorDeleted: lambda one: read_messages.DeleteCursorReply(),
}


def _writer(writer: bytes) -> bytes:
    if len(writer) != len(NOBODY) or writer == NOBODY:
        raise BadRequest("a writer is 16 bytes, and not all zeros")
    return writer


def _stage_id(stage_id: bytes) -> bytes:
    if len(stage_id) != STAGE_ID_SIZE:
        raise BadRequest(f"a stage's id has {STAGE_ID_SIZE} bytes, this one {len(stage_id)}")
    return stage_id


def _number(name: str, number: int) -> int:
    if not 0 <= number <= _NUMBER_MAX:
        raise BadRequest(f"{name} cannot be {number}")
    return number
