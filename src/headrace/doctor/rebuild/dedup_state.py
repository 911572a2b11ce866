"""The known state of writers where a journal begins, so that repeats are recognized.

A carried append was accepted, and shows the writer's newest version at that time. Where the
journal continues at a higher one, the versions between are in segments, which name no writer:
the writer is assumed to continue where its versions in the journal have the longest run.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from headrace.doctor.rebuild.lifetimes import Life
from headrace.journal.entry import Header
from headrace.model.ids import Offset
from headrace.partition.machine.operations import APPEND
from headrace.partition.machine.state import Writer, Written
from headrace.partition.machine.writer_rule import WINDOW

Appends = dict[bytes, list[Header]]  # by writer, by rising op


@dataclass(slots=True)
class Windows:
    """Writers by what they appended."""

    carried: dict[Life, Appends] = field(default_factory=dict)
    journaled: dict[Life, Appends] = field(default_factory=dict)

    @classmethod
    def of(cls, before: Iterable[Header], after: Iterable[Header]) -> "Windows":
        """Collect the appends of both, in rising order of ops."""
        found = cls()
        for known, headers in ((found.carried, before), (found.journaled, after)):
            for one in headers:
                if one.operation == APPEND:
                    life = Life(one.namespace, one.created)
                    known.setdefault(life, {}).setdefault(one.writer, []).append(one)
        return found

    def of_life(self, life: Life) -> tuple[dict[bytes, Writer], int]:
        """Return a partition's writers at the base, and how many of them are a guess."""
        found: dict[bytes, Writer] = {}
        guess_count = 0
        carried, journaled = self.carried.get(life, {}), self.journaled.get(life, {})
        for writer in {*carried, *journaled}:
            taken = _dense(carried.get(writer, []))
            newest = taken[-1].version if taken else 0
            following = _goes_on(journaled.get(writer, []), newest)
            if following > newest + 1:
                guess_count += 1
                before = Written(following - 1, Offset(0), 0, b"")
                found[writer] = Writer([before], journaled[writer][0].timestamp)
            elif taken:
                window = [_written(one) for one in taken[-WINDOW:]]
                found[writer] = Writer(window, taken[-1].timestamp)
        return found, guess_count


def _dense(carried: list[Header]) -> list[Header]:
    """Return the newest appends with consecutive versions."""
    in_order = sorted({one.version: one for one in carried}.items())
    found: list[Header] = []
    for version, one in in_order:
        if found and found[-1].version != version - 1:
            found = []
        found.append(one)
    return found


def _goes_on(journaled: list[Header], newest: int) -> int:
    """Return the version that a writer had next at the base."""
    versions = sorted({one.version for one in journaled if one.version > newest})
    if not versions or versions[0] == newest + 1:
        return newest + 1
    best = start = versions[0]
    best_count = 0
    for number, version in enumerate(versions):
        if number and versions[number - 1] != version - 1:
            start = version
        if version - start >= best_count:
            best, best_count = start, version - start
    return best


def _written(header: Header) -> Written:
    return Written(header.version, Offset(0), header.row_count, header.body_checksum)
