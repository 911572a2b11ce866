"""Findings about the copy of metadata and what is left of group 0, judged as at a start."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import msgspec

from headrace.doctor.findings.finding import NOTHING, Finding, Loss, Severity
from headrace.doctor.findings.words import HOLDS, OR_ADOPT, REFUSES, finding
from headrace.doctor.look.group_look import GroupSight
from headrace.doctor.look.replay import MetadataReplayed
from headrace.errors import HeadraceError
from headrace.journal.heads import Head
from headrace.metadata.machine import MetadataMachine
from headrace.model.ids import Op
from headrace.model.namespace import NamespaceLayout
from headrace.node.doubt.metadata_copy import NAME, FoundCopy
from headrace.node.doubt.metadata_start import remains_of, replayed
from headrace.node.doubt.verdict import CopyState, Healed, Held, Remains, Shards, Verdict, judge
from headrace.node.identity import GROUPS, METADATA, group_name

METADATA_PATH: Final = f"{GROUPS}/{group_name(METADATA)}"
IN_COPY = Loss("nothing: the copy of metadata has it")


@dataclass(frozen=True, slots=True)
class Judged:
    """What a start would do with group 0, and what its copy offers."""

    verdict: Verdict
    metadata: MetadataReplayed | None  # of the copy, where that has more than group 0

    @property
    def is_healed(self) -> bool:
        return isinstance(self.verdict, Healed)

    @property
    def is_held(self) -> bool:
        return isinstance(self.verdict, Held)


def judged(
    found: FoundCopy, group: GroupSight, slots: int, head: Head | None, shards: Shards
) -> Judged | None:
    """Judge group 0; None without a copy to judge it by."""
    machine = MetadataMachine(NamespaceLayout(*group.identity.namespace_bits))
    if found.copy is None or group.misfits:
        return None
    try:
        done = replayed(found.copy, machine)
    except HeadraceError:
        return None
    state = CopyState(found.copy, done.state)
    remains = Remains((), Op(0), None, is_whole=False)
    if not group.is_empty:
        remains, _ = remains_of(group.survey, group.identity, slots, group.room.path)
    has_more = isinstance(judge(head, state, remains, {}), Healed)
    expected = Op(found.copy.newest.op + 1)
    return Judged(
        judge(head, state, remains, shards),
        MetadataReplayed(done, expected) if has_more else None,
    )


def healed(judged: Judged | None, findings: Iterable[Finding]) -> list[Finding]:
    """Turn the damage of a group 0 that the next start heals into notes, and add that note."""
    if judged is None or not isinstance(judged.verdict, Healed):
        return list(findings)
    aside = {
        "severity": Severity.NOTE,
        "means": "the next start sets it aside and rebuilds it from the copy",
        "lost": NOTHING.words,
        "lost_rows": (),
        "next": "",
        "is_counted": True,
    }
    notes = [
        msgspec.structs.replace(one, **aside) if one.severity is Severity.DAMAGE else one
        for one in findings
    ]
    verdict = judged.verdict
    left = "nothing of it is left" if verdict.left is None else f"it ends at op {verdict.left}"
    return [finding("heal", METADATA_PATH, left=left, to=verdict.to), *notes]


def held(findings: Iterable[Finding]) -> list[Finding]:
    """Word damage that makes a start hold group 0: what the start does, and what opens it."""
    return [
        msgspec.structs.replace(
            one, means=one.means.replace(REFUSES, HOLDS), next=one.next + OR_ADOPT
        )
        if one.severity is Severity.DAMAGE and "metadata adopt" not in one.next
        else one
        for one in findings
    ]


def copy_findings(judged: Judged | None, group: GroupSight) -> Iterator[Finding]:
    """Report a copy that makes a start hold a group 0 that is intact by itself."""
    if judged is None or not isinstance(judged.verdict, Held):
        return
    reasons = "; ".join(judged.verdict.reasons)
    if group.plan is None:
        yield finding("copy: unused", NAME, reasons=reasons)
        return
    lost = "unknown: either of the two may have metadata changes that the other lacks"
    yield finding("copy-differs", NAME, loss=Loss(lost, is_counted=False), what=reasons)
