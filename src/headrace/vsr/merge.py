"""Merges the voters' logs into the log of a new view. Pure, and tested separately.

The voters with the highest log view are *canonical*: only their logs can hold the ops committed
last. Each op above the highest known commit is decided:

    keep      the canonical header is known, and some voter holds the entry
    discard   a nack quorum never held it, so it cannot have been committed; or all replicas
              answered, none holds it, and none has a faulty slot there
    wait      anything else: silence, faulty and suspect slots prove nothing

Two canonical logs may differ if one was abandoned half way in a later view; then neither entry
was committed, and the one prepared later is kept.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from headrace.model.ids import Op, ReplicaId, View
from headrace.vsr.peer_messages import DoViewChange, PrepareHeader
from headrace.vsr.quorum import Quorum


@dataclass(frozen=True, slots=True)
class Merged:
    """The log of the new view: its head, and the known headers from there down."""

    op: Op
    commit: Op
    headers: tuple[PrepareHeader, ...]  # dense, up to `op`; empty if everything is settled


@dataclass(frozen=True, slots=True)
class Waiting:
    """The fate of `op` is undecided: it depends on one of these replicas."""

    op: Op
    replicas: tuple[ReplicaId, ...]


@dataclass(frozen=True, slots=True)
class Conflict:
    """Headers that cannot belong to one history."""

    op: Op
    why: str


Outcome = Merged | Waiting | Conflict


def merge(
    votes: Mapping[ReplicaId, DoViewChange], quorum: Quorum, given_up: Op | None = None
) -> Outcome:
    """Decide the log. Requires a view-change quorum of votes; more may arrive later."""
    return _Merge(votes, quorum, given_up).run()


@dataclass(slots=True)
class _Merge:
    votes: Mapping[ReplicaId, DoViewChange]
    quorum: Quorum
    given_up: Op | None

    @property
    def log_view(self) -> View:
        return max(vote.log_view for vote in self.votes.values())

    @property
    def commit(self) -> Op:
        """Everything up to it is committed, as some sender knows."""
        return max(vote.commit for vote in self.votes.values())

    @property
    def canonical(self) -> list[DoViewChange]:
        return [vote for vote in self.votes.values() if vote.log_view == self.log_view]

    @property
    def silent(self) -> tuple[ReplicaId, ...]:
        every = map(ReplicaId, range(self.quorum.count))
        return tuple(one for one in every if one not in self.votes)

    def run(self) -> Outcome:
        commit, last = self.commit, self._last()
        if max(vote.op for vote in self.votes.values()) < commit:
            return Waiting(commit, self.silent)  # committed, and no voter has it
        headers = self._names(commit, last)
        head = last
        for number in range(commit + 1, last + 1):
            op = Op(number)
            decided = self._decide(op, headers)
            if isinstance(decided, Waiting):
                return decided
            if decided is None:
                head = Op(op - 1)
                break
            headers[op] = decided
        return self._chained(headers, head, commit)

    def _last(self) -> Op:
        """The highest op that a canonical log has, or may have had.

        Of possible ops above all known ones, only the lowest needs a decision.
        """
        heads = [vote.op for vote in self.canonical]
        known = max(vote.op for vote in self.votes.values())
        ends = [vote.suspect[1] for vote in self.canonical if vote.suspect is not None]
        heads += [min(end, Op(known + 1)) for end in ends]
        return max(*heads, self.commit)

    def _names(self, commit: Op, last: Op) -> dict[Op, PrepareHeader]:
        """The canonical headers; where none is known, the parent named by the next op."""
        found: dict[Op, PrepareHeader] = {}
        for op in range(last, 0, -1):
            header = self._canonical_header(Op(op))
            above = found.get(Op(op + 1))
            if above is not None and (header is None or header.checksum != above.parent):
                header = self._called(Op(op), above.parent) or header
            if header is not None:
                found[Op(op)] = header
            elif op <= commit:
                break
        return found

    def _canonical_header(self, op: Op) -> PrepareHeader | None:
        found = [header for vote in self.canonical if (header := header_at(vote, op))]
        return max(found, key=lambda header: header.view, default=None)

    def _called(self, op: Op, checksum: bytes) -> PrepareHeader | None:
        for vote in self.votes.values():
            header = header_at(vote, op)
            if header is not None and header.checksum == checksum:
                return header
        return None

    def _decide(
        self, op: Op, headers: dict[Op, PrepareHeader]
    ) -> PrepareHeader | Waiting | None:
        """Return the header to keep, None to end the log before `op`, or Waiting."""
        header = headers.get(op)
        if self._nacks(op, header) >= self.quorum.nack:
            return None
        holders = [one for one in self.votes if self._holds(one, op, header)]
        if header is not None and holders:
            return header
        if self.given_up is not None and op >= self.given_up:
            return None
        if self.silent:
            return Waiting(op, self.silent)
        if header is None and holders:
            return self._best(op, headers)
        faulty = tuple(one for one in self.votes if self._is_faulty(one, op))
        return Waiting(op, faulty) if faulty else None

    def _best(self, op: Op, headers: dict[Op, PrepareHeader]) -> PrepareHeader | None:
        """Return the newest fitting header; no canonical log has one, and all have answered."""
        below = headers.get(Op(op - 1))
        found = [
            (vote.log_view, header.view, header)
            for vote in self.votes.values()
            if (header := header_at(vote, op))
            and (below is None or header.parent == below.checksum)
        ]
        return max(found)[2] if found else None

    def _nacks(self, op: Op, header: PrepareHeader | None) -> int:
        return sum(_nacks(vote, op, header) for vote in self.votes.values())

    def _holds(self, replica: ReplicaId, op: Op, header: PrepareHeader | None) -> bool:
        vote = self.votes[replica]
        theirs = header_at(vote, op)
        if theirs is None or not vote.votes[op - vote.first].present:
            return False
        return header is None or theirs.checksum == header.checksum

    def _is_faulty(self, replica: ReplicaId, op: Op) -> bool:
        vote = self.votes[replica]
        if not vote.first <= op <= vote.op:
            return False
        one = vote.votes[op - vote.first]
        return not one.present and not one.nack

    def _chained(self, headers: dict[Op, PrepareHeader], head: Op, commit: Op) -> Outcome:
        """Collect the headers from the head down as far as known; they must chain."""
        chain: list[PrepareHeader] = []
        op = head
        while (header := headers.get(op)) is not None:
            if chain and chain[-1].parent != header.checksum:
                if op > commit:
                    return Conflict(op, "the op above it names another one")
                break
            chain.append(header)
            op = Op(op - 1)
        if op > commit:
            return Conflict(op, "no header is known")
        return Merged(head, commit, tuple(reversed(chain)))


def header_at(vote: DoViewChange, op: Op) -> PrepareHeader | None:
    """Return a voter's header at `op`, whether its entry is whole or not."""
    if not vote.first <= op <= vote.op:
        return None
    return vote.votes[op - vote.first].header


def _nacks(vote: DoViewChange, op: Op, header: PrepareHeader | None) -> bool:
    """Return whether a voter certainly never held this entry. Committed ones are kept."""
    if vote.suspect is not None and vote.suspect[0] <= op <= vote.suspect[1]:
        return False
    if op > vote.op:
        return True
    if op < vote.first:
        return False  # committed there, but outside its window
    one = vote.votes[op - vote.first]
    if one.nack:
        return True
    theirs = one.header
    return header is not None and theirs is not None and theirs.checksum != header.checksum
