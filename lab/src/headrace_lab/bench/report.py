"""Prints results for people and for programs."""

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table

from headrace_lab.bench.frame import Result


def as_json(bench: str, results: Sequence[Result]) -> dict[str, object]:
    """Give the figures as the JSON that `--json` prints."""
    return {
        "bench": bench,
        "cases": [
            {
                "name": result.name,
                "ours": result.ours,
                "unit": result.unit,
                "reference": result.reference,
                "reference_value": result.reference_value,
                "ratio": result.ratio,
                "spread": result.spread,
                **({"figures": dict(result.figures)} if result.figures else {}),
            }
            for result in results
        ],
    }


def print_table(console: Console, bench: str, results: Sequence[Result]) -> None:
    """Print one row per case, the machine's own limit beside ours."""
    table = Table(title=f"bench {bench}", title_justify="left")
    table.add_column("case")
    for heading in ("ours", "limit"):
        table.add_column(heading, justify="right")
    table.add_column("unit")
    table.add_column("the limit is")
    for heading in ("ratio", "spread"):
        table.add_column(heading, justify="right")
    table.add_column("floor")
    for result in results:
        table.add_row(
            result.name,
            figure(result.ours),
            figure(result.reference_value),
            result.unit,
            result.reference,
            f"{result.ratio:.2f}",
            f"{result.spread:.0%}",
            _floor(result),
        )
    console.print(table)
    for result in results:
        if result.figures:
            seen = ", ".join(f"{name} {figure(each)}" for name, each in result.figures.items())
            console.print(f"{result.name}: {seen}", soft_wrap=True)


def print_list(console: Console, benches: Mapping[str, str]) -> None:
    """Print each bench with what it measures."""
    width = max(map(len, benches))
    for name, line in benches.items():
        console.print(f"{name:{width}}  {line}", soft_wrap=True)


def figure(value: float) -> str:
    """Give `value` with about three digits that mean something."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def _floor(result: Result) -> str:
    if result.floor is None:
        return ""
    return f"{result.floor:.2f} {'met' if result.is_met else 'MISSED'}"
