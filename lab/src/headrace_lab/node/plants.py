"""Planted bugs of a node and of its clients, and the node that has one of them.

`python -m headrace_lab.node.plants NAME serve …` is `headrace serve …` with the bug in it. The
bugs of clients are planted by the process of the producers.
"""

import runpy
import sys
import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Final

from headrace.client.write.in_flight import Draft, InFlight
from headrace.errors import HeadraceError
from headrace.journal.entry import SEAL, Entry
from headrace.journal.recovery.judge import RecoveryPlan, judge
from headrace.journal.recovery.recover import recover
from headrace.journal.recovery.survey import Survey
from headrace.model.ids import Identity, Op
from headrace.node import bootstrap
from headrace.node.doubt.heads_writer import HeadsWriter
from headrace.node.group.journal_thread import Durable, JournalWriter
from headrace.node.identity import METADATA
from headrace.partition.machine import writer_rule
from headrace.partition.shard_store import Store, StoreOptions, open_store
from headrace.storage.seam import Directory
from headrace_lab.harness.mutants import Mutant

ACK_BEFORE_WRITE: Final = "acknowledged before the journal has it"
ACK_BEFORE_WRITE_NO_HEADS: Final = "acknowledged before the journal has it, without heads"
WRITERS_FORGOTTEN: Final = "writers forgotten at a start"
PUBLISHERS_FORGOTTEN: Final = "published versions forgotten at a start"
CUT_TOO_MUCH: Final = "one entry too many cut from the tail"
NEW_WRITER: Final = "client takes a new writer for what is in doubt"

# No bug: what is in doubt at a kill is mostly in the log, so that few kills show a bug.
ANSWERS_LATE: Final = "answers come late"

LATE_SECONDS: Final = 0.03  # between the journal and an answer
EARLY_SECONDS: Final = 0.3  # between an answer and the journal: long beside any write and sync

_append = JournalWriter._append
_settle = InFlight.settle


def _no_heads(*_: object) -> None:
    return


def _append_late(self: JournalWriter, entries: list[Entry]) -> None:
    # A Seal's checkpoint reads the journal at once, so what comes with one is not early.
    if any(entry.header.operation == SEAL for entry in entries):
        _append(self, entries)
        return
    self._is_idle = False
    self.group.journal.commit = entries[-1].op
    self.report(Durable(entries[-1].op))
    time.sleep(EARLY_SECONDS)
    self.group.append(entries)


def _answer_late(self: JournalWriter, entries: list[Entry]) -> None:
    self._is_idle = False
    durable = self.group.append(entries)
    time.sleep(LATE_SECONDS)
    self.report(Durable(durable))


def _judge_too_short(found: Survey, identity: Identity, slots: int, path: str) -> RecoveryPlan:
    plan = judge(found, identity, slots, path)
    head = Op(plan.head - 1)
    before = [one for one in found.scan.entries if one.op == head]
    if found.is_clean or identity.group == METADATA or head <= plan.base or not before:
        return plan
    return replace(
        plan,
        head=head,
        tip=before[0].checksum,
        commit=head,
        replay_to=head,
        cut_from=plan.head,
        cut_last=plan.cut_last or plan.head,
    )


def _open_without_writers(
    directory: Directory, identity: Identity, options: StoreOptions | None = None
) -> Store:
    store = open_store(directory, identity, options)
    for partition in store.machine.state.partitions.values():
        partition.writers.clear()
    return store


def _open_without_publishers(
    directory: Directory, identity: Identity, options: StoreOptions | None = None
) -> Store:
    store = open_store(directory, identity, options)
    for topic in store.machine.state.topics.values():
        topic.publishers.clear()
    return store


def _any_version(*_: object) -> None:
    return None


def _settle_anew(self: InFlight, now: float) -> list[tuple[Draft, HeadraceError]]:
    given_up = _settle(self, now)
    if any(draft.is_doubtful for draft in self.drafts):
        self._begin_anew(keep_doubtful=True)
    return given_up


_LATE: Final = (JournalWriter, "_append", _answer_late)
_MUTANTS: Final = {
    one.name: one
    for one in (
        Mutant(ACK_BEFORE_WRITE, "node", ((JournalWriter, "_append", _append_late),)),
        Mutant(
            ACK_BEFORE_WRITE_NO_HEADS,
            "node",
            ((JournalWriter, "_append", _append_late), (HeadsWriter, "tick", _no_heads)),
        ),
        Mutant(
            WRITERS_FORGOTTEN,
            "node",
            (
                (bootstrap, "open_store", _open_without_writers),
                (writer_rule, "_judge_new", _any_version),
                _LATE,
            ),
        ),
        Mutant(
            PUBLISHERS_FORGOTTEN,
            "node",
            ((bootstrap, "open_store", _open_without_publishers), _LATE),
        ),
        Mutant(CUT_TOO_MUCH, "node", ((recover, "judge", _judge_too_short),)),
        Mutant(NEW_WRITER, "client", ((InFlight, "settle", _settle_anew),)),
        Mutant(ANSWERS_LATE, "node", (_LATE,)),
    )
}
_OF_OTHERS: Final = frozenset({ANSWERS_LATE, ACK_BEFORE_WRITE_NO_HEADS})  # not for kills
PLANTS: Final = tuple(name for name in _MUTANTS if name not in _OF_OTHERS)


def of_node(name: str) -> str:
    """Return what is planted in the node, so that the bug of this name shows."""
    return ANSWERS_LATE if of_client(name) else name


def of_client(name: str) -> str:
    """Return the name if the bug is in the client, and nothing if it is in the node."""
    return name if name and _MUTANTS[name].harness == "client" else ""


def planted(name: str) -> AbstractContextManager[None]:
    """Plant the bug of this name, none if it is empty."""
    return _MUTANTS[name].planted() if name else nullcontext()


def main() -> None:
    """Run the command that follows the name of the bug."""
    name = sys.argv.pop(1)
    with planted(name):
        runpy.run_module("headrace", run_name="__main__")


if __name__ == "__main__":
    main()
