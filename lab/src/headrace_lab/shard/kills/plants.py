"""Planted bugs of a shard, and the sealing child process that has one of them.

`python -m headrace_lab.shard.kills.plants` is that child: it reports a segment as durable that
it never synced. The process of a fault test starts it in place of the real one.
"""

import subprocess
import sys
from contextlib import AbstractContextManager, nullcontext
from typing import Final

from headrace.journal.machine_seam import MachineState
from headrace.partition.checkpoint_files import CheckpointFiles
from headrace.partition.files.placement import Local
from headrace.partition.machine.partitions_machine import Capture, PartitionsMachine
from headrace.partition.segments import sealer, sealing_child
from headrace.storage.file import FileStorage
from headrace_lab.harness.mutants import Mutant

APPEND_SKIPPED: Final = "append skipped, yet acknowledged"
ACK_BEFORE_SYNC: Final = "ack before the sync"
CARRY_NOT_WRITTEN: Final = "carry file not written"
SEGMENT_DROPPED: Final = "segment dropped from the local part"
WRITERS_FORGOTTEN: Final = "writers forgotten by a restore"
SEGMENT_NOT_SYNCED: Final = "segment not synced"

_restore = PartitionsMachine.restore
_local = CheckpointFiles._local


def _nothing(*_: object, **__: object) -> None:
    return None


def _short_local(self: CheckpointFiles, capture: Capture) -> Local:
    known = _local(self, capture)
    return Local(known.format, known.carried, known.placed[1:], known.unplaced)


def _restore_without_writers(self: PartitionsMachine, state: MachineState | None) -> None:
    _restore(self, state)
    for partition in self.state.partitions.values():
        partition.writers.clear()


def _start_planted() -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "headrace_lab.shard.kills.plants"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )


_MUTANTS: Final = {
    one.name: one
    for one in (
        Mutant(CARRY_NOT_WRITTEN, "kill", ((CheckpointFiles, "_carry", _nothing),)),
        Mutant(SEGMENT_DROPPED, "kill", ((CheckpointFiles, "_local", _short_local),)),
        Mutant(
            WRITERS_FORGOTTEN,
            "kill",
            ((PartitionsMachine, "restore", _restore_without_writers),),
        ),
        Mutant(SEGMENT_NOT_SYNCED, "power", ((sealer, "_start", _start_planted),)),
    )
}
# These two are not in the code under test but in its caller or in its disk.
_ELSEWHERE: Final = ("", APPEND_SKIPPED, ACK_BEFORE_SYNC)
KILL_PLANTS: Final = (APPEND_SKIPPED, CARRY_NOT_WRITTEN, SEGMENT_DROPPED, WRITERS_FORGOTTEN)
POWER_PLANTS: Final = (ACK_BEFORE_SYNC, SEGMENT_NOT_SYNCED)


def planted(name: str) -> AbstractContextManager[None]:
    """Plant the bug of this name in the code of a shard, none if it is planted elsewhere."""
    return nullcontext() if name in _ELSEWHERE else _MUTANTS[name].planted()


def main() -> int:
    """Serve jobs as the real child does, without a sync."""
    FileStorage.sync = _nothing  # type: ignore[method-assign]
    return sealing_child.main()


if __name__ == "__main__":
    sys.exit(main())
