"""docs/python.md: every example runs, in order, and its tables say what the code does."""

import re
import subprocess
import sys
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest

import headrace
from headrace.model.partition_keys import partitions_of

PAGE = (Path(__file__).parents[2] / "docs" / "python.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def test_every_example_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "page"}
    for example in EXAMPLES:
        exec(compile(example, "docs/python.md", "exec"), names)
    assert names["log"].address == "./data"
    shown = capsys.readouterr().out
    assert "Is it 'name' in the schema?" in shown
    assert "coffee" in shown


def test_the_fixture_on_the_page_is_real(tmp_path):
    (example,) = [each for each in EXAMPLES if "headrace_log" in each]
    (tmp_path / "test_page.py").write_text(example)
    command = [sys.executable, "-m", "pytest", "-q"]  # it is found by its entry point
    done = subprocess.run(
        [*command, "--rootdir", str(tmp_path), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert "1 passed" in done.stdout, done.stdout + done.stderr


KINDS = {
    "string": (pa.string(), str),
    "int64": (pa.int64(), int),
    "int8": (pa.int8(), int),
    "bool": (pa.bool_(), lambda text: text == "true"),
    "float64": (pa.float64(), float),
    "date": (pa.date32(), date.fromisoformat),
    "timestamp": (
        pa.timestamp("us", "UTC"),
        lambda text: datetime.fromisoformat(text).astimezone(UTC),
    ),
    "decimal(10, 2)": (pa.decimal128(10, 2), Decimal),
}
GOLDEN = re.findall(r"^\| ([^|]+) \| `([^`|]+)` \| (\d+) \|$", PAGE, re.MULTILINE)


@pytest.mark.parametrize(("kind", "text", "partition"), GOLDEN)
def test_a_golden_key_on_the_page_is_true(kind, text, partition):
    type_, read = KINDS[kind]
    found = partitions_of(pa.array([read(text)], type_), 1_000).to_pylist()
    assert found == [int(partition)]


def test_the_page_has_golden_keys_of_every_kind():
    assert {kind for kind, _, _ in GOLDEN} == set(KINDS)


def test_errors_on_the_page_exist():
    table = PAGE[PAGE.index("## Errors") : PAGE.index("## Keys")]
    for name in re.findall(r"`([A-Z]\w+)`", table):
        assert issubclass(getattr(headrace.errors, name), headrace.HeadraceError)
