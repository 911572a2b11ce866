"""Compares the rows with the producers' ledgers by plain pyarrow, in addition to the proof.

The table's files are found by replaying its log, entry by entry, and read by pyarrow, on a path
or in a bucket; the copy is read as a topic. Each acknowledged row must be in both, once, as it
was sent.
"""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import fs

import headrace
from headrace.cli.demo.checks import COMPARED, Claim, Compared, compare
from headrace.cli.demo.demo_rows import TOPIC
from headrace.cli.demo.pipeline_process import NAME
from headrace.errors import HeadraceError
from headrace.spark.prove.prove import Proof, prove
from headrace.spark.tables.table_record import LogSource, Where, at, look

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


def check(address: str, where: Where, claims: Sequence[Claim]) -> Checked:
    """Compare table and copy with the ledgers, and have `prove` say the same."""
    problems: list[str] = []
    with headrace.connect(address) as log:
        copied = log.topic(COPY).read(columns=list(_SENT)).to_table()
        proof = proof_of(log.topic(TOPIC), where)
    in_table = _judged(table_rows(where), claims)
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


def proof_of(topic: headrace.Topic, where: Where) -> Proof:
    """Compare a whole table with its topic, by the product's own means."""
    *_, last = prove(topic, look(where, LogSource.reading(NAME, topic)))
    return last


def filesystem_of(where: Where) -> tuple[fs.FileSystem, str]:
    """Return how pyarrow reaches a table, and where it is there."""
    location = at(where)
    if location.is_path:
        return fs.LocalFileSystem(), location.url
    files = fs.S3FileSystem(
        access_key=os.environ["AWS_ACCESS_KEY_ID"],
        secret_key=os.environ["AWS_SECRET_ACCESS_KEY"],
        endpoint_override=location.endpoint,
        scheme="http",
        region=location.region,
    )
    return files, f"{location.bucket}/{location.prefix}"


def entries(where: Where) -> list[list[dict[str, Any]]]:
    """Return the actions of each entry of a table's log, in order."""
    system, root = filesystem_of(where)
    found = []
    for each in sorted(
        system.get_file_info(fs.FileSelector(f"{root}/_delta_log")), key=lambda one: one.path
    ):
        if each.path.endswith(".json"):
            with system.open_input_stream(each.path) as entry:
                found.append([json.loads(line) for line in entry.read().splitlines()])
    return found


def table_rows(where: Where) -> pa.Table:
    """Return what a Delta table holds, by its log and files alone."""
    files: dict[str, None] = {}
    system, root = filesystem_of(where)
    for actions in entries(where):
        for action in actions:
            if "add" in action:
                files[action["add"]["path"]] = None
            if "remove" in action:
                files.pop(action["remove"]["path"], None)
    schema = pa.schema(
        [("source", pa.int32()), ("number", pa.int64()), ("amount", pa.float64())]
    )
    parts = [
        pq.read_table(f"{root}/{name}", columns=list(_SENT), filesystem=system).cast(schema)
        for name in files
    ]
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
