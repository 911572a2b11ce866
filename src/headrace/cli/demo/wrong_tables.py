"""Tests the proof: lies about copies of table and log, each of which must be detected."""

import json
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import deltalake
import pyarrow.parquet as pq
from deltalake.transaction import AddAction

import headrace
from headrace.cli.demo.pipeline_process import NAME
from headrace.doctor.examine import examine
from headrace.errors import CorruptFile
from headrace.spark.prove.prove import MismatchKind, Proof, prove
from headrace.spark.tables.data_files import data_paths
from headrace.spark.tables.table_record import LogSource, at, look
from headrace.spark.worker.files import PREFIX


def proof_of(topic: "headrace.Topic", table: Path) -> Proof:
    """Compare a whole table with its topic."""
    record = look(str(table), LogSource.reading(NAME, topic))
    *_, last = prove(topic, record)
    return last


def lies(topic: "headrace.Topic", table: Path) -> list[tuple[str, str | None]]:
    """Apply each lie to a copy of the table; return it with the proof's finding, if any."""
    told: list[tuple[str, Callable[[Path], int], MismatchKind]] = [
        ("a row is deleted from the table", _delete, MismatchKind.MISSING),
        ("a data file is copied in, and the table names both", _copy_in, MismatchKind.TWICE),
    ]
    found = []
    for lie, act, kind in told:
        with _copied(table) as copy:
            rows = act(copy)
            found.append((lie, _said(proof_of(topic, copy), kind, rows)))
    with _copied(table) as copy:
        files = _files(copy)
        flipped = _flip(max(files, key=lambda one: one.stat().st_size))
        found.append(("a bit of a data file is flipped", _named(topic, copy, flipped)))
    return found


def lie_about_log(data: Path) -> tuple[str, str | None]:
    """Flip a bit in a copy of the log, and let doctor find it."""
    with _copied(data) as copy:
        files = [*copy.glob("groups/00001/segments/*.parquet")] or [
            *copy.glob("groups/00001/journal/*.wal")
        ]
        flipped = _flip(max(files, key=lambda one: one.stat().st_size))
        found = examine(str(copy), deep=True)
        for one in found.damage if found is not None else ():
            if one.file.endswith(flipped.name):
                return "a bit of the log is flipped", f"doctor: {one.kind} in {flipped.name}"
    return "a bit of the log is flipped", None


@contextmanager
def _copied(path: Path) -> Iterator[Path]:
    """Yield a temporary copy of a directory, next to it."""
    copy = path.with_name(f"{path.name}-lie")
    shutil.copytree(path, copy, ignore=shutil.ignore_patterns("*.sock", "LOCK"))
    try:
        yield copy
    finally:
        shutil.rmtree(copy)


def _delete(table: Path) -> int:
    """Delete a row; return how many rows are wrong after that."""
    deltalake.DeltaTable(str(table)).delete("source = 0 and number = 17")
    return 1


def _files(table: Path) -> list[Path]:
    return [Path(each) for each in data_paths(at(str(table)), deltalake.DeltaTable(str(table)))]


def _copy_in(table: Path) -> int:
    """Commit a copy of a data file as a new version; return its row count."""
    found = deltalake.DeltaTable(str(table))
    file = _files(table)[0]
    copy = file.with_name(f"{PREFIX}{secrets.token_hex(16)}.parquet")
    shutil.copyfile(file, copy)
    rows = int(pq.read_metadata(copy).num_rows)
    added = AddAction(
        copy.name, copy.stat().st_size, {}, 0, True, json.dumps({"numRecords": rows})
    )
    found.create_write_transaction([added], "append", found.schema())
    return rows


def _flip(file: Path) -> Path:
    with open(file, "r+b") as opened:
        opened.seek(file.stat().st_size // 3)
        byte = opened.read(1)[0]
        opened.seek(-1, 1)
        opened.write(bytes([byte ^ 1]))
    return file


def _said(proof: Proof, kind: MismatchKind, count: int) -> str | None:
    """Return the finding of a proof, if it is the expected one and the only one."""
    if proof.counts[kind] != count or sum(proof.counts.values()) != count:
        return None
    first = proof.findings[0]
    since = f"from row {first.start:,} on" if count > 1 else f"row {first.start:,}"
    return f"prove: {count:,} {kind}, partition {first.partition}, {since}"


def _named(topic: "headrace.Topic", table: Path, file: Path) -> str | None:
    try:
        proof_of(topic, table)
    except CorruptFile as error:
        return f"prove: {file.name} cannot be read" if file.name in str(error) else None
    return None
