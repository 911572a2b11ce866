"""The process to be killed: opens a group on real files, appends, and reports acknowledgements.

`python -m headrace_lab.counter.writer JOB` is started by a trial, which reads its output and
counts a line once it has read it. Besides the lines common to all such processes:

    trying OP                    ops up to OP are about to be appended
    acknowledged OP TIP          they are durable; TIP is the checksum of OP's entry
    entry OP CHECKSUM            an entry of the journal, read back (task `verify` only)
"""

import sys
from random import Random
from typing import Literal

import msgspec

from headrace.journal.entry import SEAL
from headrace.journal.recovery.recover import RecoveryOptions
from headrace.journal.recovery.recovery_report import RecoveryReport
from headrace.model.ids import Op
from headrace.storage.seam import Directory
from headrace_lab.counter.counter import ADD
from headrace_lab.counter.solo import Solo
from headrace_lab.counter.workload import GroupWorkload, Replay
from headrace_lab.disk.tapped import Tap, TappedDirectory
from headrace_lab.harness.process import a_group, say, work
from headrace_lab.harness.trial import Task

Plant = Literal["", "ack-before-sync", "ack-before-write", "ack-after-failed-sync"]

MARK_CHANCE = 0.05  # how often a commit group is followed by an idle tick
BEHIND_COUNT = 8  # commit groups that the planted early acknowledgement runs ahead


class GroupJob(msgspec.Struct, frozen=True):
    """What one process is to do. Sent as JSON in its only argument."""

    data: str
    workload: GroupWorkload
    task: Task = "write"
    life: int = 0  # differs in each process: its own pace, other file ids
    op_count_max: int = 1_000_000  # nobody killed it: it ends by itself
    file_size: int = 1024 * 1024
    first_size: int = 64 * 1024  # files grow before they are used again
    slots: int = 2**14
    plant: Plant = ""


class Findings(msgspec.Struct, frozen=True):
    """What a recovery in another process found: its report, and what can be compared."""

    head: Op
    first: Op  # the oldest op that must be readable
    digest: str
    report: RecoveryReport


def _run(job: GroupJob) -> None:
    with a_group(job.data) as directory:
        options = RecoveryOptions(
            slots=job.slots, file_size=job.file_size, first_size=job.first_size
        )
        solo = Solo.open(_tapped(directory, job), options)
        say("recovered", msgspec.json.encode(_findings(solo)).decode())
        if job.task == "verify":
            _tell_entries(solo)
        elif job.plant == "ack-before-write":
            _write_behind(job, solo)
        else:
            _write(job, solo)


def _tapped(directory: Directory, job: GroupJob) -> Directory:
    tap = Tap(
        tell=lambda kind, name: say("effect", kind, name),
        skips_journal_sync=job.plant == "ack-before-sync",
        hides_failed_sync=job.plant == "ack-after-failed-sync",
        writeback=Random(job.life),
    )
    return TappedDirectory(directory, tap)


def _findings(solo: Solo) -> Findings:
    first = Op(solo.group.journal.ring.watermark + 1)
    return Findings(solo.head, first, solo.machine.digest().hex(), solo.report)


def _tell_entries(solo: Solo) -> None:
    journal = solo.group.journal
    for number in range(journal.ring.watermark + 1, solo.head + 1):
        entry = journal.read(Op(number))
        if entry is not None:
            say("entry", number, entry.checksum.hex())


def _write(job: GroupJob, solo: Solo) -> None:
    """Append commit group after commit group; say each once it is durable, never before."""
    pace = Random(job.life)
    while solo.head < job.op_count_max:
        bodies = job.workload.next_group(solo.head)
        say("trying", solo.head + len(bodies))
        durable = _append(job, solo, bodies)
        say("acknowledged", durable, solo.group.journal.tip.hex())
        _checkpoint(solo)
        if pace.random() < MARK_CHANCE:
            solo.group.idle()


def _append(job: GroupJob, solo: Solo, bodies: list[bytes]) -> Op:
    is_seal = job.workload.is_seal(Op(solo.head + 1))
    return solo.append(bodies, SEAL if is_seal else ADD)


def _checkpoint(solo: Solo) -> None:
    pending = solo.group.checkpoints.pending
    if pending:
        say("sealing", pending[0].op)
        say("sealed", solo.group.checkpoints.run())


def _write_behind(job: GroupJob, solo: Solo) -> None:
    """The planted bug: acknowledge when queued, write when the queue is long enough."""
    replay = Replay(job.workload)
    head, queue = solo.head, list[list[bytes]]()
    while solo.head < job.op_count_max:
        bodies = job.workload.next_group(head)
        head = Op(head + len(bodies))
        queue.append(bodies)
        say("trying", head)
        say("acknowledged", head, replay.tip(head).hex())
        if len(queue) == BEHIND_COUNT:
            for waiting in queue:
                _append(job, solo, waiting)
                _checkpoint(solo)
            queue.clear()


if __name__ == "__main__":
    todo = msgspec.json.decode(sys.argv[1], type=GroupJob)
    work(lambda: _run(todo))
