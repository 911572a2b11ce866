"""The process to be killed: opens a shard on real files and writes to it alongside checkpoints.

`python -m headrace_lab.shard.kills.writer DIRECTORY LEDGER JOB` is started by a trial, which
reads its standard output. The ledger is what counts; the lines only tell what the process was
doing. Besides the lines common to all such processes:

    writing, written             around the work of the sealing child processes
    audited FOUND                everything was compared with the ledger (task `verify` only)
"""

import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from random import Random

import msgspec

from headrace.journal.entry import Entry
from headrace.journal.recovery.recover import RecoveryOptions
from headrace.model.ids import Op
from headrace.partition.machine.segment_cut import SegmentSizes
from headrace.partition.segments.seal_job import Outcome, SealJob, SealPart
from headrace.partition.segments.sealer import Children, Sealer
from headrace.partition.shard_store import StoreOptions
from headrace.storage.seam import Directory
from headrace_lab.disk.tapped import FAILED_SYNC, Tap, TappedDirectory
from headrace_lab.harness.process import a_group, say, work
from headrace_lab.harness.trial import Task
from headrace_lab.shard.kills import plants
from headrace_lab.shard.kills.audit import Audit
from headrace_lab.shard.kills.ledger import Ledger
from headrace_lab.shard.kills.life import ShardLife
from headrace_lab.shard.kills.workload import ShardWorkload
from headrace_lab.shard.shard import SoloShard

# Small, so that seals, carried runs, rolls, drains and collections come many times a second.
SIZES = SegmentSizes(size_min=48 * 1024, size_target=128 * 1024, waited_max=3)
CLEAN_STOP_CHANCE = 0.25  # that a verifier leaves a clean stop behind


class ShardJob(msgspec.Struct, frozen=True):
    """What one process is to do. Sent as JSON in its last argument."""

    workload: ShardWorkload
    task: Task = "write"
    life: int = 0  # differs in each process: its own pace
    seconds_max: float = 60.0  # nobody killed it: it ends by itself
    file_size: int = 1024 * 1024
    first_size: int = 64 * 1024  # files grow before they are used again
    slots: int = 2**12
    tears_writes: bool = False  # put single pages on the disk ahead of a sync
    plant: str = ""


class ShardFindings(msgspec.Struct, frozen=True):
    """What a recovery found, as far as it can be compared."""

    head: Op
    digest: str
    seconds: float
    replayed: int
    rewritten: int
    is_torn: bool
    snapshot_op: Op
    unmended: int  # things it had to leave undone: a seal that failed, for one


class _Watched:
    """A sealer that tells when its children are at work."""

    is_apart = True

    def __init__(self) -> None:
        self.inner: Sealer = Children()

    def seal(
        self, jobs: Sequence[SealJob], directory: Directory, read: Callable[[SealPart], Entry]
    ) -> list[Outcome]:
        if not jobs:
            return []
        say("writing")
        outcomes = self.inner.seal(jobs, directory, read)
        say("written")
        return outcomes

    def close(self) -> None:
        self.inner.close()


def _run(job: ShardJob, data: str, path: str) -> None:
    ledger = Ledger(path)
    with plants.planted(job.plant), a_group(data) as directory:
        shard = SoloShard.open(_tapped(directory, job, ledger), _options(job))
        say("recovered", msgspec.json.encode(_findings(shard)).decode())
        try:
            if job.task == "verify":
                _verify(job, shard, ledger)
            else:
                _write(job, shard, ledger)
        finally:
            shard.store.keeper.sealer.close()


def _tapped(directory: Directory, job: ShardJob, ledger: Ledger) -> Directory:
    def tell(kind: str, name: str) -> None:
        ledger.has_failed_sync |= kind == FAILED_SYNC
        say("effect", kind, name)

    tap = Tap(
        tell=tell,
        skips_journal_sync=job.plant == plants.ACK_BEFORE_SYNC,
        writeback=Random(job.life) if job.tears_writes else None,
    )
    return TappedDirectory(directory, tap)


def _options(job: ShardJob) -> StoreOptions:
    group = RecoveryOptions(
        slots=job.slots,
        file_size=job.file_size,
        first_size=job.first_size,
        spare_count_max=2,
    )
    return StoreOptions(group, SIZES, sealer=_Watched)


def _findings(shard: SoloShard) -> ShardFindings:
    report = shard.store.report
    return ShardFindings(
        head=shard.head,
        digest=shard.store.machine.digest().hex(),
        seconds=report.seconds,
        replayed=report.replayed,
        rewritten=report.rewritten,
        is_torn=report.cut is not None,
        snapshot_op=report.snapshot_op,
        unmended=sum(not note.mended for note in report.notes),
    )


def _verify(job: ShardJob, shard: SoloShard, ledger: Ledger) -> None:
    audit = Audit(shard.store, ledger.account, job.workload)
    found = audit.run()
    ledger.acknowledge([rows.line("shown") for rows in audit.unheard])
    say("audited", msgspec.json.encode(found).decode())
    if Random(job.life).random() < CLEAN_STOP_CHANCE:
        shard.store.group.stop()


def _write(job: ShardJob, shard: SoloShard, ledger: Ledger) -> None:
    with ThreadPoolExecutor(1) as pool:
        life = ShardLife(
            job.workload,
            shard,
            ledger,
            Random(job.life),
            pool,
            say,
            skips_an_append=job.plant == plants.APPEND_SKIPPED,
        )
        life.resume()
        life.run(job.seconds_max)


if __name__ == "__main__":
    *places, text = sys.argv[1:]
    todo = msgspec.json.decode(text, type=ShardJob)
    work(lambda: _run(todo, *places))
