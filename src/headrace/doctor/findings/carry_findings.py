"""Findings about a shard's carry files.

A node reads an entry from its journal, or from the newest carry file that has it. What a
journal file still holds below the previous checkpoint is drained: only a salvage finds it.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from headrace.doctor.findings.finding import Finding, Loss, LostRows, in_words, joined
from headrace.doctor.findings.names import Names
from headrace.doctor.findings.words import finding, foreign
from headrace.doctor.look.deep_check import BadEntry, CarryState
from headrace.doctor.look.group_look import cause_text, flaw_text
from headrace.doctor.look.shard_look import ShardSight
from headrace.errors import ForeignFile
from headrace.model.ids import Op
from headrace.partition.files.carry import carry_name
from headrace.partition.files.carry_table import CarrySource
from headrace.partition.machine.state import Partition, Piece
from headrace.partition.shard_store import CARRY

_FOUND = "; --salvage finds them in another copy of the entry"


@dataclass(slots=True)
class CarryWords:
    """Turns the state of carry files into findings."""

    shard: ShardSight
    where: str  # of the group, relative to the data directory
    names: Names
    states: Mapping[str, CarryState]  # of a deep look
    told: set[Op]  # ops whose loss a finding already explains

    def findings(self) -> list[Finding]:
        """Return the findings about files, then about entries."""
        return [*self._misfits(), *self._bad_files(), *self._gone(), *self._bad_entries()]

    def _misfits(self) -> Iterator[Finding]:
        named = self.shard.named_carries()
        for name, error in self.shard.entries.misfits.items():
            file, loss = self._file(name), self._loss(self._rows_of(name, named))
            if isinstance(error, ForeignFile):
                yield foreign("foreign-file", file, error, loss)
            else:
                what = cause_text(error)
                yield finding("foreign-file: carry", file, loss=loss, what=what)

    def _bad_files(self) -> Iterator[Finding]:
        entries, named = self.shard.entries, self.shard.named_carries()
        for op in sorted(named):
            name = carry_name(op)
            if name in entries.ruins:
                yield self._bad_file(name, flaw_text(entries.ruins[name].flaw), "carry-bad")
            elif name not in entries.carries and name not in entries.misfits:
                yield self._bad_file(name, "the file is missing", "carry-gone")
            elif name in entries.carries and (
                entries.carries[name].checksum != named[op].checksum
            ):
                what = "it is a different carry file of that op"
                yield self._bad_file(name, what, "carry-bad")

    def _bad_file(self, name: str, what: str, kind: str) -> Finding:
        loss = self._loss(self._rows_of(name, self.shard.named_carries()))
        position = None if kind == "carry-gone" else 0
        return finding(kind, self._file(name), loss=loss, position=position, what=what)

    def _gone(self) -> Iterator[Finding]:
        """Find missing kept files that named carry files need."""
        entries, named = self.shard.entries, self.shard.named_carries()
        carries = [entries.carries.get(carry_name(op)) for op in sorted(named)]
        for source in {
            source: None
            for carry in carries
            if carry is not None
            for source in carry.sources
            if source.file_id not in entries.kept
        }:
            loss = self._loss(self._rows_in(source))
            what = "the file is missing"
            yield finding("kept-gone", self._file(source.name), loss=loss, what=what)

    def _rows_in(self, source: CarrySource) -> dict[Op, LostRows]:
        """Return the live rows that are only in a kept file."""
        replayed = self.shard.replayed
        live = replayed.pieces() if replayed is not None else {}
        found: dict[Op, LostRows] = {}
        for carry in self.shard.entries.carries.values():
            for op in carry.ops if source in carry.sources else ():
                is_in = carry.source_of(carry.row(op)) == source
                if is_in and op in live and not self.shard.is_served(op):
                    self.told.add(op)
                    found[op] = self.names.piece(*live[op])
        return found

    def _rows_of(self, name: str, named: Iterable[Op]) -> dict[Op, LostRows]:
        """Return the live rows that only this file had: the first one written above them."""
        replayed = self.shard.replayed
        found: dict[Op, LostRows] = {}
        for op, live in sorted(replayed.pieces().items()) if replayed is not None else ():
            home = min((one for one in named if one >= op), default=None)
            is_here = home is not None and carry_name(home) == name
            if is_here and not self.shard.is_served(op):
                self.told.add(op)
                found[op] = self.names.piece(*live)
        return found

    def _loss(self, found: Mapping[Op, LostRows]) -> Loss:
        if self.shard.replayed is None:
            words = "unknown: no snapshot records which rows its entries had"
            return Loss(words, is_counted=False)
        if not found:
            return Loss("nothing: the journal has all its entries, or no row needs them")
        rows = joined(found.values())
        kept = sum(self.shard.entries.holds(op) for op in found)
        more = ""
        if kept == len(found):
            more = "; --salvage finds them in the journal or in the rest of the file"
        elif kept:
            more = f"; --salvage finds {kept:,} of their {len(found):,} entries"
        return Loss(in_words(rows) + more, rows)

    def _bad_entries(self) -> Iterator[Finding]:
        for state in self.states.values():
            for bad in state.bad:
                if bad.is_gone:
                    continue  # its file is a finding of its own
                self.told.add(bad.op)
                yield self._bad_entry(state, bad)

    def _bad_entry(self, state: CarryState, bad: BadEntry) -> Finding:
        replayed = self.shard.replayed
        live = replayed.pieces().get(bad.op) if replayed is not None else None
        return finding(
            "carry-entry: unneeded" if live is None else "carry-entry",
            self._file(bad.name),
            loss=self._entry_loss(state.name, bad.op, live),
            position=bad.position,
            first_op=bad.op,
            what=bad.flaw,
        )

    def _entry_loss(self, name: str, op: Op, live: tuple[Partition, Piece] | None) -> Loss:
        if live is None:
            return Loss("nothing: no row needs this entry anymore")
        rows = (self.names.piece(*live),)
        if op > self.shard.drained and op in self.shard.entries.journal:
            return Loss(f"nothing yet: the journal has {rows[0]} until its next checkpoint")
        if self.shard.is_served(op, but_for=name):
            return Loss("nothing: a newer carry file has a copy")
        more = "" if self.shard.entries.read(op) is None else _FOUND
        return Loss(in_words(rows) + more, rows)

    def _file(self, name: str) -> str:
        return f"{self.where}/{CARRY}/{name}"
