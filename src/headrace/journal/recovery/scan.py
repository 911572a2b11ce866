"""Scan a group's journal files and report their contents. A scan changes nothing.

A scan walks the frames of all files in op order. Where a frame is not the expected one, it
looks for the next intact one, so that it knows everything that survived. Frames after a bad one
do not tell a torn tail from damage: groups are synced together and a crash may keep any part of
one. *Evidence* does: a bad op that some frame, the superblock or a snapshot records as durable
is damage, never a torn tail.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from headrace.journal.entry import CHECKSUM_SIZE, HEADER_SIZE, Flaw, Header
from headrace.journal.frame import PREFIX_SIZE, FrameKind, Prefix, aligned
from headrace.journal.journal_file import FIRST_POSITION, FileHeader
from headrace.journal.recovery.scan_findings import (
    Break,
    Candidate,
    CleanEnd,
    Evidence,
    Faulty,
    Found,
    Gap,
    Rubble,
    Scan,
    ScannedFile,
    ShortFile,
    TornTail,
)
from headrace.journal.recovery.walk import FileReader, traces
from headrace.model.ids import Identity, Op
from headrace.storage.seam import Storage

# The smallest frame of an entry: bounds how many entries a gap between two frames had.
_FRAME_SIZE_MIN: Final = PREFIX_SIZE + HEADER_SIZE


@dataclass(frozen=True, slots=True)
class _Bad:
    """A place where the frame of `op` should begin but does not."""

    op: Op
    file: int
    position: int | None
    flaw: Flaw
    checksum: bytes | None


def scan(candidates: Sequence[Candidate], identity: Identity, evidence: Evidence) -> Scan:
    """Classify the files, given in order of their first op. Changes nothing."""
    return _Scanner(identity, evidence, [ScannedFile(one) for one in candidates]).run()


@dataclass(slots=True)
class _Scanner:
    identity: Identity
    evidence: Evidence
    files: list[ScannedFile]
    expected: Op = Op(1)
    tip: bytes | None = None  # checksum of expected - 1; None after a bad frame
    entries: list[Found] = field(default_factory=list)
    bad: list[_Bad] = field(default_factory=list)
    breaks: list[Break] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)
    shorts: list[ShortFile] = field(default_factory=list)
    rubble: list[Rubble] = field(default_factory=list)
    durable: Op = Op(0)
    commit: Op = Op(0)
    highest: Op = Op(0)  # highest op of any readable header
    reach: Op = Op(0)  # highest op that unreadable bytes may have held
    has_trace: bool = False  # this life of the file left something after the last frame

    def run(self) -> Scan:
        for index, file in enumerate(self.files):
            header = file.candidate.header
            if self._is_cut(header.first_op, index):
                break
            self._join(index, header)
            self._walk(index, file)
        self._check_last_end()
        return self._result()

    def _is_cut(self, first_op: Op, index: int) -> bool:
        cut_from = self.evidence.cut_from
        return cut_from is not None and first_op > cut_from and index > 0

    def _join(self, index: int, header: FileHeader) -> None:
        """Move from the previous file to this one."""
        path = self.files[index].candidate.storage.path
        if index > 0:
            before = self.files[index - 1]
            # A file gets its name once the previous one is synced: the name is evidence.
            self.durable = max(self.durable, Op(header.first_op - 1))
            self._forgive_end(index - 1, before, header.first_op)
            if header.first_op > self.expected:
                self._missing(before, index - 1, header.first_op)
            elif header.first_op < self.expected:
                self._break(path, 0, f"first op {self.expected}", str(header.first_op))
            elif self.tip is not None and header.parent != self.tip:
                self._break(path, 0, self.tip.hex(), header.parent.hex())
        self.expected, self.tip = header.first_op, header.parent
        if index > 0 and self.bad and self.bad[-1].op == header.first_op - 1:
            self._name_last_bad(header.parent)

    def _forgive_end(self, index: int, before: ScannedFile, first_op: Op) -> None:
        """The previous file has all its entries: only its end frame is bad or missing."""
        if before.has_end or first_op != self.expected:
            return
        flaw = Flaw("end frame", f"op {first_op - 1}", "nothing")
        if self.bad and self.bad[-1].op == first_op:
            flaw = self.bad.pop().flaw
        self.rubble.append(Rubble(before.candidate.storage.path, before.end, flaw, is_end=True))

    def _missing(self, before: ScannedFile, index: int, first_op: Op) -> None:
        path = before.candidate.storage.path
        if before.has_end:
            self.gaps.append(Gap(self.expected, Op(first_op - 1), path, is_file=True))
            return
        flaw = Flaw("the frame is missing", f"op {self.expected}", "no data of this life")
        if first_op - self.expected > before.candidate.header.size // _FRAME_SIZE_MIN:
            self.gaps.append(Gap(self.expected, Op(first_op - 1), path, is_file=True))
            return  # more than ever fitted here: do not enumerate them
        known = self.bad[-1].op if self.bad else Op(0)
        for op in range(max(self.expected, known + 1), first_op):
            place = before.end if op == self.expected else None
            self.bad.append(_Bad(Op(op), index, place, flaw, None))

    def _break(self, path: str, position: int, expected: str, found: str) -> None:
        self.breaks.append(Break(self.expected, path, position, expected, found))

    def _walk(self, index: int, file: ScannedFile) -> None:
        storage = file.candidate.storage
        header = file.candidate.header
        reader = FileReader(storage, header.file_id, header.size)
        self.has_trace = False
        file.is_short = reader.size < file.candidate.header.size
        position = FIRST_POSITION
        while position < reader.size:
            after = self._step(index, file, reader, position)
            if after is None:
                break
            position = after
        file.last_op = Op(self.expected - 1)
        self._note_long(storage, header.size)
        if file.is_short:
            short = ShortFile(index, storage.path, file.candidate.header.size, reader.size)
            self._note_short(short, index == len(self.files) - 1)

    def _note_long(self, storage: Storage, size: int) -> None:
        if storage.size() > size:
            flaw = Flaw("file size", size, storage.size())
            self.rubble.append(Rubble(storage.path, size, flaw))

    def _note_short(self, short: ShortFile, is_newest: bool) -> None:
        """The next file's first op shows what an older one lost; the newest has no next."""
        if is_newest:
            self.shorts.append(short)
        else:
            flaw = Flaw("file size", short.expected, short.found)
            self.rubble.append(Rubble(short.path, short.found, flaw))

    def _step(
        self, index: int, file: ScannedFile, reader: FileReader, position: int
    ) -> int | None:
        """Take one frame; return where to continue, or None at the end of this file."""
        frame = reader.frame(position)
        prefix, header = frame.prefix, frame.header
        if isinstance(prefix, Prefix):
            if self._is_above_cut(prefix):
                self._look_behind(reader, position)
                return None
            self._note(prefix)
        flaw = frame.flaw or self._misplaced(prefix, header)
        if flaw is not None and self._is_named(prefix):
            assert isinstance(prefix, Prefix)
            return self._lose_named(index, file, position, flaw, prefix)
        if flaw is not None:
            return self._resync(index, file, reader, position, flaw)
        assert isinstance(prefix, Prefix)
        if header is not None and not self._follows(file, position, header):
            self._look_behind(reader, position)
            return None
        file.end = position + aligned(prefix.size)
        if header is not None:
            self._take(index, position, prefix, header, reader)
            return file.end
        if self.tip is None:
            self._name_last_bad(prefix.tip)
            self.tip = prefix.tip
        file.has_end = prefix.kind is FrameKind.END
        return None if file.has_end else file.end

    def _is_named(self, prefix: Prefix | Flaw) -> bool:
        """Whether only the entry is bad: its prefix is intact and the expected one."""
        if not isinstance(prefix, Prefix) or prefix.kind is not FrameKind.ENTRY:
            return False
        return prefix.op == self.expected

    def _is_above_cut(self, prefix: Prefix) -> bool:
        cut_from = self.evidence.cut_from
        return cut_from is not None and prefix.op >= cut_from

    def _note(self, prefix: Prefix) -> None:
        if prefix.durable > self.durable:
            self.durable = prefix.durable
        if prefix.commit > self.commit:
            self.commit = prefix.commit
        if prefix.op > self.highest:
            self.highest = prefix.op

    def _misplaced(self, prefix: Prefix | Flaw, header: Header | None) -> Flaw | None:
        """Check an intact frame against its place: is it the expected one?"""
        assert isinstance(prefix, Prefix)
        expected = self.expected if header is not None else Op(self.expected - 1)
        if prefix.op != expected:
            return Flaw("op", expected, prefix.op)
        if header is None:
            return None
        if header.cluster != self.identity.cluster or header.group != self.identity.group:
            return Flaw("group", self.identity.group, header.group)
        return None

    def _follows(self, file: ScannedFile, position: int, header: Header) -> bool:
        if self.tip is None:
            self._name_last_bad(header.parent)
            return True
        if header.parent == self.tip:
            return True
        self._break(file.candidate.storage.path, position, self.tip.hex(), header.parent.hex())
        return False

    def _look_behind(self, reader: FileReader, position: int) -> None:
        """Nothing after a break or a cut is kept, but its evidence counts."""
        cluster, group = self.identity.cluster, self.identity.group
        for trace in traces(reader, position, cluster, group, self.expected):
            self._note_room(reader, position)
            self.highest = max(self.highest, trace.op or Op(0))
            if trace.prefix is not None:
                self._note(trace.prefix)

    def _note_room(self, reader: FileReader, position: int) -> None:
        """From here to the end of the file the number of entries is unknown."""
        room = (reader.limit - position) // _FRAME_SIZE_MIN
        self.reach = max(self.reach, Op(self.expected + max(room, 1) - 1))

    def _take(
        self, index: int, position: int, prefix: Prefix, header: Header, reader: FileReader
    ) -> None:
        self.entries.append(
            Found(
                header.op,
                index,
                position,
                prefix.size,
                header.checksum,
                header.parent,
                reader.sealed(position),
            )
        )
        self.expected, self.tip = Op(header.op + 1), header.checksum

    def _name_last_bad(self, checksum: bytes) -> None:
        """The entry after a bad one records the checksum of the bad one."""
        last = self.bad[-1]
        if last.checksum is None:
            self.bad[-1] = _Bad(last.op, last.file, last.position, last.flaw, checksum)

    def _resync(
        self, index: int, file: ScannedFile, reader: FileReader, position: int, flaw: Flaw
    ) -> int | None:
        """Find the next intact frame of this file's life after a bad one."""
        self.has_trace = False
        cluster = self.identity.cluster
        for trace in traces(reader, position, cluster, self.identity.group, self.expected):
            self.has_trace = True
            self.highest = max(self.highest, trace.op or Op(0))
            if trace.prefix is None:
                continue
            if self._is_above_cut(trace.prefix):
                self.commit = max(self.commit, trace.prefix.commit)
                continue
            self._note(trace.prefix)
            is_entry = trace.prefix.kind is FrameKind.ENTRY
            target = trace.prefix.op if is_entry else Op(trace.prefix.op + 1)
            if trace.position == position and is_entry and target == self.expected:
                return self._lose_named(index, file, position, flaw, trace.prefix)
            room = (trace.position - position) // _FRAME_SIZE_MIN
            if trace.position > position and self.expected <= target <= self.expected + room:
                self._lose(index, position, flaw, target)
                return trace.position
        if self.has_trace:
            self._note_room(reader, position)
            self.bad.append(_Bad(self.expected, index, position, flaw, None))
        return None

    def _lose_named(
        self, index: int, file: ScannedFile, position: int, flaw: Flaw, prefix: Prefix
    ) -> int:
        """The prefix is intact and names the op here: only this one op is bad."""
        self.bad.append(_Bad(self.expected, index, position, flaw, prefix.tip))
        self.expected, self.tip = Op(self.expected + 1), prefix.tip
        file.end = position + aligned(prefix.size)
        return file.end

    def _lose(self, index: int, position: int, flaw: Flaw, target: Op) -> None:
        """Everything from the expected op up to `target` is bad."""
        if target == self.expected:  # a bad mark: no entry is lost, and the chain continues
            path = self.files[index].candidate.storage.path
            self.rubble.append(Rubble(path, position, flaw))
            return
        for op in range(self.expected, target):
            # The start of the second of several lost frames is unknown.
            place = position if op == self.expected else None
            self.bad.append(_Bad(Op(op), index, place, flaw, None))
        self.expected, self.tip = target, None

    def _check_last_end(self) -> None:
        if not self.files:
            return
        last = self.files[-1]
        if last.has_end:
            path = last.candidate.storage.path
            self.gaps.append(Gap(self.expected, None, path, is_file=True))

    def _result(self) -> Scan:
        proven = max(self.durable, self.commit, self.evidence.durable)
        if self.evidence.cut_from is not None:
            proven = min(proven, Op(self.evidence.cut_from - 1))
        torn = next((one for one in self.bad if one.op > proven), None)
        ending: CleanEnd | TornTail = CleanEnd()
        if torn is not None:
            last = max(torn.op, self.highest)
            position = self._start_of(torn)
            ending = TornTail(torn.op, last, torn.file, position)
            self.files[torn.file].end = position
        limit = torn.op if torn is not None else None
        entries = [one for one in self.entries if limit is None or one.op < limit]
        head, tip = self._head(entries, limit)
        self._check_reach(head, proven)
        return Scan(
            files=self.files,
            entries=entries,
            faulty=[self._faulty(one) for one in self.bad if limit is None or one.op < limit],
            breaks=self.breaks,
            gaps=self.gaps,
            shorts=self.shorts,
            rubble=self.rubble,
            ending=ending,
            head=head,
            tip=tip,
            proven=proven,
            commit=self.commit,
            highest=max(self.highest, head),
            reach=max(self.reach, self.highest, head),
            marked=min(self.durable, head),
        )

    def _start_of(self, torn: _Bad) -> int:
        """Return where the run of bad frames that ends in `torn` begins."""
        known = [
            one.position for one in self.bad if one.op <= torn.op and one.file == torn.file
        ]
        return next(position for position in reversed(known) if position is not None)

    def _check_reach(self, head: Op, proven: Op) -> None:
        """Every durable op must be here, however cleanly the file seems to end."""
        if head < proven and self.files and not any(gap.last is None for gap in self.gaps):
            path = self.files[-1].candidate.storage.path
            self.gaps.append(Gap(Op(head + 1), proven, path, is_file=False))

    def _head(self, entries: list[Found], limit: Op | None) -> tuple[Op, bytes | None]:
        """The newest op below the tail, intact or known to have been durable."""
        bad = [one for one in self.bad if limit is None or one.op < limit]
        if entries and (not bad or entries[-1].op > bad[-1].op):
            return entries[-1].op, entries[-1].checksum
        if bad:
            return bad[-1].op, bad[-1].checksum
        if not self.files:
            return Op(0), None
        header = self.files[0].candidate.header
        return Op(header.first_op - 1), header.parent

    def _faulty(self, bad: _Bad) -> Faulty:
        path = self.files[bad.file].candidate.storage.path
        return Faulty(bad.op, bad.checksum, path, bad.position, bad.flaw)


def contiguous_from(entries: Sequence[Found], base: Op, tip: bytes) -> Iterator[Found]:
    """Yield the entries above `base` while they are dense and chain from `tip`."""
    assert len(tip) == CHECKSUM_SIZE
    expected = base + 1
    for found in entries:
        if found.op < expected:
            continue
        if found.op != expected or found.parent != tip:
            return
        yield found
        expected, tip = found.op + 1, found.checksum
