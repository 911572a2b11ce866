"""The ready state of a node, which status and `/health/ready` show."""

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from headrace.errors import HeadraceError
from headrace.journal.heads import Head
from headrace.journal.recovery.recovery_report import RecoveryReport
from headrace.model.ids import GroupId, Revision
from headrace.node.doubt.doubt import WAY_OUT, Doubt, Orphan
from headrace.node.group.pump import Pump
from headrace.node.identity import METADATA
from headrace.node.node_status import (
    disk_figures,
    group_figures,
    iso,
    reconciler_figures,
    schema_lines,
    store_figures,
)

if TYPE_CHECKING:
    from headrace.node.bootstrap import Boot

SHOWN_MAX: Final = 100  # orphans, and reasons for doubt: all must fit in one response
_SCHEMA_SIZE_MAX: Final = 64 * 1024  # characters of one schema
_US_PER_S = 1_000_000


@dataclass(slots=True)
class GroupState:
    """The outcome of the start for one group."""

    head: Head | None = None  # that it must reach, from the file `heads`
    report: RecoveryReport | None = None
    refused: HeadraceError | None = None
    held: HeadraceError | None = None  # its whole part is read, and nothing is written
    lines: list[str] = field(default_factory=list)  # actions besides the recovery

    @property
    def is_undecided(self) -> bool:
        """Whether it waits for the shards, as group 0 does if its copy has more."""
        return (self.report, self.refused, self.held) == (None, None, None)

    @property
    def said(self) -> str:
        """The outcome of the start, in one line."""
        if self.held is not None:
            return f"held: {self.held}"
        if self.refused is not None:
            return f"refused: {self.refused}"
        if self.report is None:
            return "it has less than its copy: decided once the shards are recovered"
        return "; ".join([*self.lines, self.report.lines()[0]])


def ready_state(boot: "Boot") -> dict[str, object]:
    """Return everything known of a starting or running node."""
    doubt = doubt_of(boot)
    return {
        "ready": boot.is_ready,
        "path": boot.path,
        "release": boot.release,
        "started_at": iso(boot.began),
        "uptime_seconds": round(max(0.0, time.time() - boot.began), 3),
        "cluster": boot.node.cluster.hex() if boot.node else "",
        "disk": disk_figures(boot.path),
        "work": boot.node.calls.counters.figures() if boot.node else {},
        "scrub": boot.scrubber.figures() if boot.scrubber else None,
        "leases": boot.node.lessor.figures() if boot.node else {},
        "steps": dict(boot.steps),
        "groups": {str(number): _group_state(boot, number) for number in sorted(boot.groups)},
        "heads": {} if boot.heads is None else boot.heads.describe(),
        "metadata_copy": {} if boot.metadata is None else boot.metadata.describe(),
        "diverged": list(boot.diverged),
        "orphans": [] if doubt is None else _orphans(doubt),
        "orphan_count": 0 if doubt is None else len(doubt.orphans),
        "degraded": degraded(boot),
        "doubt": [] if doubt is None else list(doubt.reasons),
        "way_out": "" if doubt is None else WAY_OUT,
    }


def degraded(boot: "Boot") -> list[str]:
    """Return where acknowledged rows or topics are known to be missing from service.

    Damage that only a full read reveals is not included: `headrace doctor --deep` finds it.
    """
    files = [
        f"{each.path}: {each.what}"
        for number in sorted(boot.stores)
        for each in boot.stores[number].findings
        if each.rows_missing
    ]
    doubt = doubt_of(boot)
    return [*(() if doubt is None else _reasons(doubt)), *files, *boot.diverged]


def doubt_of(boot: "Boot") -> Doubt | None:
    """Return the current metadata doubt, if any."""
    return boot.doubt if boot.node is None else boot.node.doubt


def _reasons(doubt: Doubt) -> list[str]:
    """Return the reasons that fit in a response; revisions come before orphans."""
    more = len(doubt.reasons) - SHOWN_MAX
    shown = list(doubt.reasons[:SHOWN_MAX])
    return [*shown, f"and {more:,} more reasons"] if more > 0 else shown


def _orphans(doubt: Doubt) -> list[dict[str, object]]:
    """Describe the first orphans. The schema of each topic is shown once."""
    shown: set[tuple[GroupId, int, Revision]] = set()
    found: list[dict[str, object]] = []
    for one in doubt.orphans[:SHOWN_MAX]:
        topic = (one.shard, doubt.topic_number(one.key.namespace), one.topic_created)
        found.append(_orphan(one, shows_schema=topic not in shown))
        shown.add(topic)
    return found


def _orphan(one: Orphan, *, shows_schema: bool) -> dict[str, object]:
    return {
        "group": one.shard,
        "partition": f"{one.key.namespace:x}",
        "created": one.key.created,
        "rows": one.row_count,
        "bytes": one.size,
        "first_at": None if one.first_at is None else iso(one.first_at / _US_PER_S),
        "last_at": None if one.last_at is None else iso(one.last_at / _US_PER_S),
        "schema": schema_lines(one.schema, _SCHEMA_SIZE_MAX) if shows_schema else [],
    }


def _group_state(boot: "Boot", number: GroupId) -> dict[str, object]:
    state = boot.groups[number]
    said: dict[str, object] = {
        "recovery": state.lines + ([] if state.report is None else state.report.lines()),
        "refused": None if state.refused is None else str(state.refused),
        "held": None if state.held is None else str(state.held),
    }
    group = boot.metadata_group if number == METADATA else None
    if number in boot.stores:
        store = boot.stores[number]
        group = store.group
        said |= store_figures(store)
    if boot.node is not None and number in boot.node.shards:
        said |= reconciler_figures(boot.node.shards[number].shard)
    return said if group is None else group_figures(group, _pump(boot, number)) | said


def _pump(boot: "Boot", number: GroupId) -> Pump | None:
    if boot.node is None:
        return None
    if number == METADATA:
        driver = None if boot.node.catalog is None else boot.node.catalog.driver
        return None if driver is None else driver.pump
    running = boot.node.shards.get(number)
    return None if running is None else running.driver.pump
