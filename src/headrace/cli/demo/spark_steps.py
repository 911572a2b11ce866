"""The demo with Spark: log and table stay equal despite kills, and lies are detected."""

import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
from rich.status import Status

import headrace
from headrace.cli.demo.checks import COMPARED, compare
from headrace.cli.demo.demo_digest import COLUMNS, SHOWN, acknowledged_rows, digest_of
from headrace.cli.demo.demo_rows import SCHEMA, TOPIC
from headrace.cli.demo.kill_keys import Game
from headrace.cli.demo.pipeline_process import (
    TABLE,
    DemoDriver,
    DriverTestimony,
    write_definition,
)
from headrace.cli.demo.steps import DemoStage
from headrace.cli.demo.transcript import Transcript
from headrace.cli.demo.wrong_tables import lie_about_log, lies, proof_of
from headrace.spark.prove.prove import MismatchKind
from headrace.spark.tables.data_files import data_paths
from headrace.spark.tables.leftovers import orphans_of
from headrace.spark.tables.table_record import at

PAUSE_S = 0.1  # between a producer's batches: leaves CPU time to Spark
ROUNDS = 3  # of the table, in each part


def perform(transcript: Transcript, directory: Path, seconds: float, *, chaos: bool) -> None:
    """Run the whole demo: producers, kills of node and drivers, and the proof.

    With `chaos`, only the user kills, by keys.
    """
    table = directory / TABLE
    with ExitStack() as exits:
        stage = DemoStage(transcript, directory, PAUSE_S)
        file = write_definition(directory, stage.address)
        driver = exits.enter_context(DemoDriver(file))  # Spark warms up meanwhile
        exits.enter_context(stage)
        transcript.line("spark", f"a driver with its Java starts, pid {driver.pid}")
        _attend(transcript, driver, "a session", lambda found: "warm" in found.events)
        driver.say("go")
        _bring(transcript, driver, ROUNDS)
        if chaos:
            drivers = [Game(transcript, stage, file, table).play(exits, driver)]
        else:
            stage.write(seconds)
            stage.kill_node(seconds)
            _bring(transcript, driver, driver.testimony.rounds + 1)
            _kill_driver(transcript, driver, table)
            drivers = _race(transcript, exits, file, directory)
        stage.finish()
        _finish(transcript, drivers)
        _prove(transcript, stage, table)
    _tell_lie(transcript, *lie_about_log(directory / "data"))


def _attend(
    transcript: Transcript,
    driver: DemoDriver,
    what: str,
    is_so: Callable[[DriverTestimony], bool],
) -> None:
    with Status(f"waiting for {what}", console=transcript.console) as status:

        def look(found: DriverTestimony) -> bool:
            if found.rounds:
                status.update(found.told)
            return is_so(found)

        driver.until(what, look)


def _bring(transcript: Transcript, driver: DemoDriver, rounds: int) -> None:
    began = time.monotonic()
    _attend(transcript, driver, "rows in the table", lambda found: found.rounds >= rounds)
    found = driver.testimony
    transcript.line(
        "pipeline",
        f"Delta {found.told} ({time.monotonic() - began:.1f} s)",
        "green",
    )


def _kill_driver(transcript: Transcript, driver: DemoDriver, table: Path) -> None:
    """Kill the driver between its files and the commit."""
    driver.say("die")
    _attend(transcript, driver, "its end", lambda found: "dying" in found.events)
    driver.wait()
    left = orphans_of(str(table))
    transcript.killed_driver(driver.pid, "between its files and their commit")
    transcript.check(
        "a driver died between files and commit",
        f"{len(left)} files are left, and no version of the table references them",
        is_held=bool(left),
    )


def _race(
    transcript: Transcript, exits: ExitStack, file: Path, directory: Path
) -> list[DemoDriver]:
    """Let two drivers write the same rows and commit at the same moment."""
    drivers = [exits.enter_context(DemoDriver(file)) for _ in range(2)]
    names = [str(directory / "here-0"), str(directory / "here-1")]
    for driver, ours, theirs in zip(drivers, names, reversed(names), strict=True):
        _attend(transcript, driver, "a session", lambda found: "warm" in found.events)
        driver.say(f"meet {ours} {theirs}", "go")
    for driver in drivers:
        _attend(transcript, driver, "a meeting", lambda found: "met" in found.events)
    for driver in drivers:
        _attend(transcript, driver, "a commit", lambda found: bool(found.rounds + found.lost))
    lost = sum(one.testimony.lost for one in drivers)
    transcript.line("race", "two drivers write files for the same rows and commit at once")
    text = "one of them lost, and continues after the other" if lost == 1 else f"{lost} lost"
    transcript.check("two drivers at once", text, lost == 1)
    return drivers


def _finish(transcript: Transcript, drivers: list[DemoDriver]) -> None:
    for driver in drivers:
        driver.say("end")
    for driver in drivers:
        _attend(transcript, driver, "the end", lambda found: "done" in found.events)
    version = max(one.testimony.version for one in drivers)
    transcript.line("pipeline", f"all rows are in the table, at version {version}", "green")


def _prove(transcript: Transcript, stage: DemoStage, table: Path) -> None:
    """Prove, count again by other means, and test the proof with lies."""
    with headrace.connect(stage.address) as log:
        topic = log.topic(TOPIC)
        proof = proof_of(topic, table)
        numbers = f"{stage.acknowledged:,} acknowledged = {proof.in_log:,} in the log = "
        wrong = ", ".join(f"{proof.counts[kind]:,} {kind}" for kind in MismatchKind)
        transcript.line("prove", f"{numbers}{proof.in_table:,} in the table; {wrong}")
        is_equal = stage.acknowledged == proof.in_log == proof.in_table
        transcript.check("the proof", f"grade {proof.grade}", proof.holds and is_equal)
        _digest(transcript, stage, topic, table)
        _count(transcript, stage, table)
        for lie, said in lies(topic, table):
            _tell_lie(transcript, lie, said)


def _digest(
    transcript: Transcript, stage: DemoStage, topic: "headrace.Topic", table: Path
) -> None:
    """Compare digests of the rows of ledgers, log and table."""
    names = [*SCHEMA.names, "_hr_partition", "_hr_offset"]
    found = {
        "ledgers": acknowledged_rows(stage.sources.claims()),
        "log": topic.read(columns=COLUMNS).to_table(),
        "table": _rows(table, names).rename_columns(list(COLUMNS)),
    }
    digests = {who: digest_of(rows) for who, rows in found.items()}
    for number, (who, digest) in enumerate(digests.items()):
        label = "" if number else "digest"
        transcript.line(label, f"{digest[:SHOWN]}…  {found[who].num_rows:,} rows of the {who}")
    is_equal = len(set(digests.values())) == 1
    text = "three equal digests" if is_equal else "the digests differ"
    transcript.check("the digests", f"{text}: SHA-256 of all rows, in order", is_equal)


def _count(transcript: Transcript, stage: DemoStage, table: Path) -> None:
    """Compare the table with the ledgers using only pyarrow, without a node."""
    names = ["source", "number", "_hr_partition", "_hr_offset"]
    rows = _rows(table, names).rename_columns(list(COMPARED))
    rows = rows.sort_by([("_partition", "ascending"), ("_offset", "ascending")])
    found = compare(rows, stage.sources.claims())
    text = f"{found.found:,} rows read by pyarrow alone, compared with the ledgers"
    transcript.line("count", text)
    for problem in found.problems:
        transcript.line("", problem, "bold red")
    transcript.check("the count", "each acknowledged row is there once", not found.problems)


def _rows(table: Path, names: list[str]) -> pa.Table:
    """Read columns of a table, file by file.

    Reading through deltalake leaves threads that abort the process if it exits soon after.
    """
    files = data_paths(at(str(table)), deltalake.DeltaTable(str(table)))
    return pa.concat_tables([pq.read_table(file, columns=names) for file in files])


def _tell_lie(transcript: Transcript, lie: str, said: str | None) -> None:
    transcript.line("lie", lie)
    transcript.check(lie, said or "not detected", said is not None)
