"""Translates partition requests into log operations, and their results into replies."""

from typing import assert_never

from headrace.errors import BadRequest, HeadraceError
from headrace.model.ids import KEEP_NEXT, Offset
from headrace.model.proposal import NO_WRITER, EntryProposal
from headrace.model.results import (
    AppendResult,
    CursorDeleted,
    CursorStored,
    DiscardResult,
    PublishResult,
    StageResult,
    TrimResult,
)
from headrace.node.requests.outcomes import partition_error
from headrace.partition.machine import operations
from headrace.partition.machine.operations import STAGE_ID_SIZE, Command
from headrace.partition.machine.results import Refusal
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
_Answered = (
    HeadraceError
    | AppendResult
    | StageResult
    | PublishResult
    | DiscardResult
    | TrimResult
    | CursorStored
    | CursorDeleted
)
_NUMBER_MAX = 2**63 - 1  # of numbers in the log: fits their fields


def to_log(request: Written) -> EntryProposal:
    """Return the proposal for a request without rows, or raise BadRequest."""
    writer, version = NO_WRITER, 0
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
            for one in request.stages:
                _stage_id(one.stage_id)
                _number("op_count", one.op_count)
                _number("row_count", one.row_count)
            return operations.Publish(request.stages)
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
    """Translate a result of the machine into a reply or an error."""
    if isinstance(result, Refusal):
        return partition_error(result)
    assert isinstance(result, _Answered)
    return result


def _writer(writer: bytes) -> bytes:
    if len(writer) != len(NO_WRITER) or writer == NO_WRITER:
        raise BadRequest("a writer ID must have 16 bytes, not all zero")
    return writer


def _stage_id(stage_id: bytes) -> bytes:
    if len(stage_id) != STAGE_ID_SIZE:
        raise BadRequest(f"a stage ID must have {STAGE_ID_SIZE} bytes, got {len(stage_id)}")
    return stage_id


def _number(name: str, number: int) -> int:
    if not 0 <= number <= _NUMBER_MAX:
        raise BadRequest(f"{name} cannot be {number}")
    return number
