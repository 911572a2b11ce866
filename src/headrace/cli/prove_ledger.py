"""What producers wrote down as acknowledged, beside log and table."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import headrace
from headrace.cli.exits import NotFound
from headrace.cli.output import say

if TYPE_CHECKING:
    from headrace.spark.record import Record

Line = tuple[int, int, int]  # partition, start and end of one append


def lines_of(ledgers: Iterable[Path], topic: "headrace.Topic") -> Iterable[Line]:
    """Give partition, start and end of every append that ledgers name. A cut line is none."""
    lives = dict(enumerate(each.created for each in topic.core.view.info.partitions))
    for path in ledgers:
        try:
            text = path.read_bytes().decode(errors="replace")
        except OSError as error:
            raise NotFound(f"{path} cannot be read: {error.strerror}") from error
        older = 0
        for number, line in enumerate(text.split("\n")[:-1], 1):
            try:
                found = json.loads(line)
                if found["topic"] != topic.name:
                    continue
                place = int(found["partition"])
                if found["created"] == lives.get(place):
                    yield place, int(found["start"]), int(found["end"])
                else:
                    older += 1
            except (ValueError, KeyError, TypeError):
                say(f"{path}, line {number}: not a line of a ledger, left out")
        if older:
            say(f"{path}: {older:,} appends to an earlier {topic.name}, left out")


def lost(lines: Iterable[Line], topic: "headrace.Topic") -> int:
    """Count the rows of ledgers that the log does not have."""
    ends = {each.partition: each.end for each in topic.bounds()}
    return sum(max(0, end - max(start, ends.get(number, 0))) for number, start, end in lines)


def waiting(lines: Iterable[Line], topic: "headrace.Topic", record: "Record") -> int:
    """Count the rows of ledgers that the log has, and that the table does not record."""
    ends = {each.partition: each.end for each in topic.bounds()}
    found = 0
    for number, start, end in lines:
        known = max(start, min(end, ends.get(number, 0)))
        ranges = record.ranges(number) if number in record.ends else []
        brought = (max(0, min(known, stop) - max(start, first)) for first, stop in ranges)
        found += known - start - sum(brought)
    return found
