"""Compares the rows with the producers' ledgers by plain pyarrow, in addition to the proof.

The table's files are found by replaying its log, entry by entry, and read by pyarrow; the copy
is read as a topic. Each acknowledged row must be in both, once, as it was sent.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import headrace
from headrace.cli.demo.checks import COMPARED, Claim, Compared, compare
from headrace.cli.demo.demo_rows import TOPIC
from headrace.cli.demo.wrong_tables import proof_of
from headrace.errors import HeadraceError

COPY: Final = "demo/copy"
_SENT: Final = ("source", "number", "amount")
_CENTS: Final = 100  # a row's amount is its number in hundredths


@dataclass(frozen=True, slots=True)
class Checked:
    """What one run left behind."""

    acknowledged: int
    in_table: int
    in_copy: int
    lost: int
    twice: int
    invented: int
    problems: tuple[str, ...]


def check(address: str, table: Path, claims: Sequence[Claim]) -> Checked:
    """Compare table and copy with the ledgers, and have `prove` say the same."""
    problems: list[str] = []
    with headrace.connect(address) as log:
        copied = log.topic(COPY).read(columns=list(_SENT)).to_table()
        proof = proof_of(log.topic(TOPIC), table)
    in_table = _judged(table_rows(table), claims)
    in_copy = _judged(copied, claims)
    for what, found in (("table", in_table), ("copy", in_copy)):
        problems += [f"the {what}: {problem}" for problem in found.problems]
    acknowledged = sum(claim.acknowledged for claim in claims)
    if not proof.holds or not acknowledged == proof.in_log == proof.in_table:
        wrong = ", ".join(f"{count:,} {kind}" for kind, count in proof.counts.items() if count)
        counts = f"{proof.in_log:,} in the log, {proof.in_table:,} in the table"
        problems.append(f"prove: {counts}; {wrong or 'nothing is wrong'}")
    return Checked(
        acknowledged=acknowledged,
        in_table=in_table.found,
        in_copy=in_copy.found,
        lost=in_table.lost + in_copy.lost,
        twice=in_table.twice + in_copy.twice,
        invented=in_table.invented + in_copy.invented,
        problems=tuple(problems),
    )


def table_rows(table: Path) -> pa.Table:
    """Return what a Delta table holds, by its log and files alone."""
    files: dict[str, None] = {}
    for entry in sorted((table / "_delta_log").glob("*.json")):
        for line in entry.read_text(encoding="utf-8").splitlines():
            action = json.loads(line)
            if "add" in action:
                files[action["add"]["path"]] = None
            if "remove" in action:
                files.pop(action["remove"]["path"], None)
    schema = pa.schema(
        [("source", pa.int32()), ("number", pa.int64()), ("amount", pa.float64())]
    )
    parts = [pq.read_table(table / name, columns=list(_SENT)).cast(schema) for name in files]
    return pa.concat_tables([schema.empty_table(), *parts])


def _judged(rows: pa.Table, claims: Sequence[Claim]) -> Compared:
    """Compare, by what the rows themselves say: whose they are, and which."""
    as_sent = pc.divide(rows["number"].cast(pa.float64()), float(_CENTS))
    is_changed = pc.not_equal(rows["amount"], as_sent)
    changed = int(pc.sum(is_changed).as_py() or 0)
    named = [rows["source"], rows["number"], rows["source"], rows["number"]]
    found = compare(pa.table(named, names=list(COMPARED)), claims)
    if not changed:
        return found
    problems = (*found.problems, f"{changed:,} rows are not as they were sent")
    return Compared(found.found, found.lost, found.twice, found.invented + changed, problems)


def failed_check(claims: Sequence[Claim], error: HeadraceError) -> Checked:
    """Say that nothing could be compared."""
    acknowledged = sum(claim.acknowledged for claim in claims)
    return Checked(acknowledged, 0, 0, 0, 0, 0, (f"nothing could be compared: {error}",))
