"""Every error, grouped by what the caller does next.

    HeadraceError
    ├── Rejected             fix the request: a retry cannot succeed
    │   ├── BodyTooLarge         a body over the size limit; nothing was written
    │   ├── NotNext              an entry that is not head + 1, or does not chain to the head
    │   ├── TooFewSlots          the ring is smaller than the ops that must be kept
    │   ├── ForeignFile          a file or directory of another cluster, group or replica
    │   ├── BadName              an invalid name of a stream or topic
    │   ├── BadSchema            an unsupported column, or one incompatible with the old schema
    │   ├── BadBatch             a batch that does not match its schema or its header
    │   ├── BadRequest           invalid arguments
    │   ├── Expired              rows before the first one retained
    │   ├── Recreated            meant for an earlier life of the partition
    │   ├── TopicUnknown         no such topic: a mistyped name, or it was deleted
    │   ├── TopicExists          a topic of that name already exists
    │   ├── Refused              a machine refused the request by its rules; see `code`
    │   ├── BadFrame             bytes from a peer that break the protocol; it is disconnected
    │   ├── VersionUnknown       the two sides have no protocol version in common
    │   ├── Unauthorized         the token is missing or wrong
    │   └── BadConfig            an invalid setting
    ├── Unavailable          wait, then retry
    │   ├── DirectoryHeld        another process holds the data directory
    │   ├── RingFull             no free slot until the next checkpoint
    │   ├── DiskFull             no space; nothing was written
    │   ├── WriteFailed          a write failed and was undone; nothing was written
    │   ├── Stopped              this group was stopped here; it may run again elsewhere
    │   ├── CheckpointPending    two checkpoints are already waiting
    │   ├── PartitionUnknown     no such partition here, or not yet
    │   ├── Behind               rows that are not committed here yet
    │   ├── ReadFailed           a file cannot be read now; its content is unknown
    │   ├── SealFailed           a file of a checkpoint cannot be written now; none is skipped
    │   ├── NotReady             the node, or the requested group, is not serving now
    │   ├── NotYet               a machine does not know something yet; see `code`
    │   ├── Busy                 a limit was reached; see `retry_after_ms`
    │   ├── NotErased            a topic is deleted, but files still hold bytes of its rows
    │   ├── TimedOut             the deadline passed first; nothing happened
    │   └── ConnectionLost       no connection; the request had no effect
    ├── Corrupt              stop, and alert an operator
    │   ├── CorruptEntry         an acknowledged entry cannot be read
    │   ├── CorruptFile          a Headrace file whose bytes are not what was written
    │   ├── CorruptSegment       a segment, or one of its row groups, is not what was sealed
    │   ├── Diverged             a cursor beyond the end: acknowledged rows are missing
    │   ├── CorruptSnapshot      no usable snapshot, and the journal does not reach back
    │   ├── MissingFile          a required file is missing
    │   ├── ChainBroken          valid entries that do not follow one another
    │   ├── UnsupportedFormat    written by a newer release
    │   └── ApplyFailed          a machine raised on a committed entry: this group halts
    ├── Unknown              it may have taken effect: retry only as the same writer and version
    │   └── WriterUnknown        the log forgot this writer: continue as a new one
    └── StorageFailed        this file is no longer trusted; its component is poisoned

Errors carry fields, not just text: what (`path`), where (`position`), `expected`, `found`.
"""

import errno
from typing import Final

from headrace.model.revisions import shown

# Hints for errors of the operating system that are not the fault of the disk.
OS_HINTS: Final[dict[int, str]] = {
    errno.EACCES: "Run as the user that owns it, or change its permissions (see ls -ld)",
    errno.EPERM: "Run as the user that owns it, and check its attributes (see lsattr)",
    errno.ENOENT: "Check the path",
    errno.ENOTDIR: "Check the path: one of its parent components is a file",
    errno.ENAMETOOLONG: "Use a shorter name",
    errno.ELOOP: "Check the path: its symbolic links form a loop",
    errno.ENOSPC: "Free some space and retry",
    errno.EDQUOT: "Free some space or raise the quota, and retry",
    errno.EROFS: "Use a path on a file system that is not mounted read-only",
    errno.EMFILE: "Raise the limit on open files: ulimit -n",
    errno.EIO: "Check the disk: the kernel log (dmesg) has details",
}
_NOT_THE_DISK: Final = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.EMFILE})


def _hint_of(cause: OSError) -> str:
    """Return a hint, if the disk is not at fault."""
    return OS_HINTS[cause.errno] if cause.errno in _NOT_THE_DISK else ""


class HeadraceError(Exception):
    """The base class of all errors that Headrace raises."""

    hint: str = ""  # the next step, in one sentence

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        if hint:
            self.hint = hint

    def __str__(self) -> str:
        text = super().__str__()
        return f"{text}. {self.hint}" if self.hint else text


class Rejected(HeadraceError):
    """Fix the request: a retry cannot succeed."""


class Unavailable(HeadraceError):
    """Nothing happened. Wait, then retry."""


class Corrupt(HeadraceError):
    """Stop, and alert an operator: bytes are not what was written."""

    def __init__(
        self,
        message: str,
        *,
        path: str,
        position: int | None = None,
        expected: object = None,
        found: object = None,
        hint: str = "",
    ) -> None:
        where = path if position is None else f"{path} at byte {position}"
        text = f"{where}: {message}"
        if expected is not None or found is not None:
            text += f" (expected {expected}, found {found})"
        super().__init__(text, hint=hint)
        self.path = path
        self.position = position
        self.expected = expected
        self.found = found


class Unknown(HeadraceError):
    """It may have taken effect: retry only with the same writer and version."""

    hint = "Check whether it took effect before you retry"


class StorageFailed(HeadraceError):
    """The disk failed, so `path` is not trusted. `stage`, the step, tells what is on disk."""

    hint = "Check the disk, then restart: only a restart shows what it holds"

    def __init__(self, path: str, stage: str, cause: OSError, *, hint: str = "") -> None:
        text = f"{path}: {stage} failed: {cause.strerror or cause}"
        super().__init__(text, hint=hint or _hint_of(cause))
        self.path = path
        self.stage = stage
        self.cause = cause


class BodyTooLarge(Rejected):
    """A body over the size limit. None of it was written."""

    def __init__(self, size: int, limit: int, *, row_count: int | None = None) -> None:
        what, hint = f"a body of {size} bytes", "Split it into smaller batches"
        if row_count == 1:
            what = f"a row of {size} bytes"
            hint = (
                "Rows are never split: store large values elsewhere and a reference in the row"
            )
        super().__init__(f"{what} exceeds the limit of {limit}", hint=hint)
        self.size = size
        self.limit = limit


class NotNext(Rejected):
    """An entry that is not the one after the head, or does not chain to it."""

    hint = "Seal the entry for the op after the head, with the head's checksum as its parent"

    def __init__(self, field: str, expected: object, found: object) -> None:
        super().__init__(
            f"the entry does not follow the head: expected {field} {expected}, found {found}"
        )
        self.field = field
        self.expected = expected
        self.found = found


class TooFewSlots(Rejected):
    """The ring is smaller than the ops that must be kept."""

    def __init__(self, path: str, slots: int, live: int) -> None:
        super().__init__(
            f"{path}: {live} ops must stay reachable, but the ring has only {slots} slots",
            hint="Open it with the slot count it was created with",
        )
        self.path = path
        self.slots = slots
        self.live = live


class ForeignFile(Rejected):
    """A file of another cluster, group or replica: the wrong directory, or a misplaced file."""

    def __init__(self, path: str, field: str, expected: object, found: object) -> None:
        super().__init__(
            f"{path} belongs elsewhere: expected {field} {expected}, found {found}",
            hint="Check the data directory in the configuration; nothing was changed",
        )
        self.path = path
        self.field = field
        self.expected = expected
        self.found = found


class BadName(Rejected):
    """An invalid name of a stream or topic."""

    def __init__(self, what: str, name: str) -> None:
        super().__init__(
            f"{name[:200]!r} is not a valid name for a {what}",
            hint="Use 1 to 64 of A-Z a-z 0-9 . _ - starting with a letter or a digit",
        )
        self.what = what
        self.name = name


class BadSchema(Rejected):
    """A schema that is not supported. `column` is a path, such as `items[].price`."""

    def __init__(self, column: str, flaw: str, *, hint: str = "") -> None:
        super().__init__(f"column {column!r}: {flaw}" if column else flaw, hint=hint)
        self.column = column


class BadBatch(Rejected):
    """A batch that does not match its schema or its header. `column` may be empty."""

    def __init__(self, flaw: str, *, column: str = "", hint: str = "") -> None:
        super().__init__(f"column {column!r}: {flaw}" if column else flaw, hint=hint)
        self.column = column


class BadRequest(Rejected):
    """Invalid arguments, whatever the log holds."""


class Expired(Rejected):
    """Rows before the first one retained. No other rows are returned instead."""

    def __init__(self, partition: str, offset: int, first: int) -> None:
        super().__init__(
            f"partition {partition}: offset {offset} was deleted, "
            f"the first retained is {first}",
            hint=f"Read from {first}, and treat the rows before it as lost to this reader",
        )
        self.partition = partition
        self.offset = offset
        self.first = first


class Recreated(Rejected):
    """The partition was deleted and created again: its offsets now count other rows."""

    def __init__(self, partition: str, expected: int, found: int) -> None:
        super().__init__(
            f"partition {partition} was deleted and created again: "
            f"expected revision {shown(expected)}, found {shown(found)}",
            hint="Look the topic up again and decide where to start",
        )
        self.partition = partition
        self.expected = expected
        self.found = found


class TopicUnknown(Rejected):
    """No such topic."""


class TopicExists(Rejected):
    """A topic of that name already exists."""


class Refused(Rejected):
    """A machine refused the request. Its rules say so, not this node."""

    def __init__(self, code: str, message: str, *, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.code = code


class BadFrame(Rejected):
    """Bytes from a peer that break the protocol. The connection is closed."""

    hint = "Check that both sides run Headrace and that nothing in between alters the bytes"


class VersionUnknown(Rejected):
    """The two sides have no protocol version in common."""


class Unauthorized(Rejected):
    """The token is missing or wrong."""


class BadConfig(Rejected):
    """An invalid setting. `key` is its name in the file, such as `listen.port`."""

    def __init__(self, key: str, flaw: str, *, source: str = "", hint: str = "") -> None:
        where = f" (from {source})" if source else ""
        super().__init__(f"{key}{where}: {flaw}" if key else flaw, hint=hint)
        self.key = key
        self.source = source


class DirectoryHeld(Unavailable):
    """Another process holds the data directory. `socket` is where it listens, if it does."""

    def __init__(self, path: str, pid: int | None, socket: str = "") -> None:
        holder = "another process" if pid is None else f"process {pid}"
        super().__init__(
            f"{path} is in use by {holder}",
            hint="Stop it, or connect to it: headrace.connect(address)",
        )
        self.path = path
        self.pid = pid
        self.socket = socket


class RingFull(Unavailable):
    """The slot of an op still holds an entry that must be kept. Nothing was written."""

    def __init__(self, op: int, watermark: int, slots: int) -> None:
        super().__init__(
            f"op {op} has no free slot: all {slots} slots hold ops from {watermark + 1} on",
            hint="Wait for the next checkpoint",
        )
        self.op = op
        self.watermark = watermark
        self.slots = slots


class DiskFull(Unavailable):
    """No space left. Nothing was written, and existing data is intact."""

    def __init__(self, path: str, stage: str, *, hint: str = "") -> None:
        super().__init__(
            f"{path}: no space left on the device ({stage})",
            hint=hint or "Free some space; appends then resume automatically",
        )
        self.path = path
        self.stage = stage


class WriteFailed(Unavailable):
    """A write failed and was durably undone: its entries are not in the journal."""

    hint = "Append them again; if that keeps failing, check the disk"

    def __init__(self, path: str, position: int, cause: OSError, *, hint: str = "") -> None:
        super().__init__(
            f"{path} at byte {position}: write failed and was undone: "
            f"{cause.strerror or cause}",
            hint=hint,
        )
        self.path = path
        self.position = position
        self.cause = cause


class Stopped(Unavailable):
    """The group was stopped in this process."""

    def __init__(self, path: str) -> None:
        super().__init__(f"{path}: this group is stopped", hint="Open it again")
        self.path = path


class CheckpointPending(Unavailable):
    """The maximum number of checkpoints is waiting. Appends wait too."""

    def __init__(self, pending: int) -> None:
        super().__init__(
            f"{pending} checkpoints are waiting to be written",
            hint="Wait for the oldest to finish",
        )
        self.pending = pending


class PartitionUnknown(Unavailable):
    """No such partition here: never created, still being created, or deleted."""

    def __init__(self, partition: str) -> None:
        super().__init__(
            f"there is no partition {partition} here",
            hint="If it was just created, retry; otherwise check the topic name",
        )
        self.partition = partition


class Behind(Unavailable):
    """Rows that are not committed here yet. A bounded read is complete or fails."""

    def __init__(self, partition: str, end: int, committed: int) -> None:
        super().__init__(
            f"partition {partition}: requested up to {end}, committed up to {committed}",
            hint="Wait and retry, or request less",
        )
        self.partition = partition
        self.end = end
        self.committed = committed


class ReadFailed(Unavailable):
    """A file could not be opened or read now. This says nothing about its content."""

    def __init__(self, path: str, cause: OSError, *, hint: str = "") -> None:
        usual = "Check the limits of this process and this machine, then retry"
        super().__init__(
            f"{path}: cannot be read now: {cause.strerror or cause}",
            hint=hint or _hint_of(cause) or usual,
        )
        self.path = path
        self.cause = cause


class SealFailed(Unavailable):
    """A file of a checkpoint could not be written now. The next attempt has the same rows."""

    def __init__(self, path: str, flaw: str) -> None:
        super().__init__(
            f"{path}: the file was not written: {flaw}",
            hint="The next attempt writes the same rows; nothing is lost",
        )
        self.path = path


class NotReady(Unavailable):
    """The node, or the requested group, is not serving now."""


class NotYet(Unavailable):
    """A machine does not know something yet: a schema, or the version before this one."""

    def __init__(self, code: str, message: str, *, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.code = code


class Busy(Unavailable):
    """A limit was reached. Nothing happened."""

    def __init__(self, what: str, retry_after_ms: int) -> None:
        super().__init__(what, hint=f"Come again in {retry_after_ms} ms")
        self.retry_after_ms = retry_after_ms


class NotErased(Unavailable):
    """The topic is deleted, but the files named may still hold bytes of its rows."""


class TimedOut(Unavailable):
    """The deadline passed before it took effect. Nothing happened."""

    hint = "Retry, with a longer timeout if this keeps happening"


class ConnectionLost(Unavailable):
    """No connection. The request had no effect."""

    hint = "Check that the node is running, then retry"


class WriterUnknown(Unknown):
    """The log has forgotten this writer: batches in flight may have been appended."""

    hint = "Check which rows are in the log, then continue as a new writer"


class CorruptEntry(Corrupt):
    """An acknowledged entry cannot be read."""

    hint = "Stop, leave the directory as it is, and restore the file from a backup"


class CorruptFile(Corrupt):
    """A Headrace file whose bytes are not what was written."""


class CorruptSegment(Corrupt):
    """A segment, or one of its row groups, is not what was sealed."""

    hint = "Other ranges are still served; restore the file from a backup or a replica"

    def __init__(
        self,
        message: str,
        *,
        path: str,
        row_group: int | None = None,
        expected: object = None,
        found: object = None,
    ) -> None:
        text = message if row_group is None else f"row group {row_group}: {message}"
        super().__init__(text, path=path, expected=expected, found=found)
        self.row_group = row_group


class Diverged(Corrupt):
    """A cursor beyond the end of its partition. Clamping it would hide the loss."""


class CorruptSnapshot(Corrupt):
    """No usable snapshot, and the journal does not reach back far enough to do without."""


class MissingFile(Corrupt):
    """A required file is missing."""


class ChainBroken(Corrupt):
    """Valid entries that do not follow one another."""


class UnsupportedFormat(Corrupt):
    """Written by a newer release than this one."""

    hint = "Open it with the release that wrote it, or a newer one"


class MetadataInDoubt(Corrupt):
    """Metadata may not be what it once acknowledged: it can be read, but not changed."""


class ApplyFailed(Corrupt):
    """A machine raised on a committed entry: this group halts, the others continue."""


def refuse_newer(path: str, known: int, needed: int | str) -> None:
    """Raise UnsupportedFormat if a file needs a newer format than the newest that is known."""
    if int(needed) > known:
        raise UnsupportedFormat(
            "needs a newer release", path=path, expected=f"format {known}", found=needed
        )


def first_line(error: BaseException) -> str:
    """Return the first line of a library error, without the trace that it may include."""
    return (str(error) or type(error).__name__).splitlines()[0]
