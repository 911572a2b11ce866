"""The frame's order and arithmetic on made-up rates, and real rounds of a tiny size."""

import json
import os
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from headrace.errors import Rejected
from headrace_lab.bench import bare, disk, frame, place, registry, report
from headrace_lab.bench.cache import full_cache
from headrace_lab.bench.frame import Case, Result, measure, scaled, spread, sum_up
from headrace_lab.commands.bench import chosen_cases


class Script:
    """A side that plays back rates and writes down what happens to it."""

    def __init__(self, name, rates, diary):
        self.name = name
        self.rates = iter(rates)
        self.diary = diary

    @contextmanager
    def __call__(self):
        self.diary.append(f"{self.name} opens")
        yield self.one_round
        self.diary.append(f"{self.name} closes")

    def one_round(self):
        rate = next(self.rates)
        self.diary.append(f"{self.name} {rate}")
        return rate


def a_case(ours=(), limit=(), *, diary=None, floor=None):
    diary = [] if diary is None else diary
    return Case(
        name="appends",
        unit="MiB/s",
        ours=Script("ours", ours, diary),
        reference="a bare loop",
        limit=Script("limit", limit, diary),
        floor=floor,
    )


def a_result(**changes):
    fields = {
        "name": "appends",
        "unit": "MiB/s",
        "ours": 80.0,
        "reference": "a bare loop",
        "reference_value": 100.0,
        "ratio": 0.8,
        "spread": 0.05,
        "floor": None,
    }
    return Result(**(fields | changes))


def test_rounds_take_turns_and_swap_who_goes_first():
    diary = []
    measure(a_case([1, 2, 3, 4], [10, 20, 30, 40], diary=diary), 3, lambda line: None)
    assert diary == [
        "ours opens",
        "limit opens",
        *("ours 1", "limit 10"),
        *("ours 2", "limit 20"),
        *("limit 30", "ours 3"),
        *("ours 4", "limit 40"),
        "limit closes",
        "ours closes",
    ]


def test_the_same_is_done_before_each_round_of_either_side():
    diary = []
    case = a_case([1, 2], [10, 20], diary=diary)
    measure(case, 1, lambda line: None, before=lambda: diary.append("fill"))
    rounds = diary[2:-2]
    assert rounds == [
        "fill",
        "ours 1",
        "fill",
        "limit 10",
        "fill",
        "ours 2",
        "fill",
        "limit 20",
    ]


def test_a_full_cache_holds_a_file_of_that_size_that_goes_at_the_end(tmp_path):
    with full_cache(tmp_path, size=3 * bare.MIB) as fill:
        (filler,) = tmp_path.iterdir()
        assert filler.stat().st_size == 3 * bare.MIB
        fill()
        fill()
    assert list(tmp_path.iterdir()) == []


def test_a_cache_is_filled_with_pages_that_were_read_once(tmp_path, monkeypatch):
    advice = []

    def heard(file, start, size, kind):
        advice.append((os.lseek(file, 0, os.SEEK_CUR), start, size, kind))

    monkeypatch.setattr(os, "posix_fadvise", heard)
    with full_cache(tmp_path, size=bare.MIB) as fill:
        fill()
        assert advice[0] == (
            0,
            0,
            0,
            os.POSIX_FADV_DONTNEED,
        )  # all of it, before a byte is read
        count = len(advice)
        fill()
        assert advice[count:] == advice[:count]


def test_a_full_cache_on_a_disk_without_room_is_refused_and_writes_nothing(tmp_path):
    with pytest.raises(Rejected, match="MiB") as caught, full_cache(tmp_path, size=2**60):
        pass
    assert "--full-cache" in caught.value.hint
    assert list(tmp_path.iterdir()) == []


def test_cases_are_chosen_by_a_part_of_their_name():
    cases = [replace(a_case(), name=name) for name in ("10 partitions", "1,000 partitions")]
    assert chosen_cases(cases, None) == cases
    assert chosen_cases(cases, "1,000 P") == cases[1:]
    with pytest.raises(Rejected, match="'many'") as caught:
        chosen_cases(cases, "many")
    assert "1,000 partitions" in caught.value.hint


def test_the_warm_up_round_does_not_count():
    result = measure(a_case([1000, 2, 4, 3], [1, 10, 10, 10]), 3, lambda line: None)
    assert result.ours == 3
    assert result.reference_value == 10
    assert result.ratio == pytest.approx(0.3)


def test_each_round_is_told_as_it_begins():
    told = []
    measure(a_case([1, 1, 1], [1, 1, 1]), 2, told.append)
    assert told == [
        "appends: warming up",
        "appends: round 1 of 2",
        "appends: round 2 of 2",
    ]


def test_sides_are_closed_when_a_round_fails():
    diary = []

    @contextmanager
    def failing():
        try:
            yield lambda: 1 / 0
        finally:
            diary.append("closed")

    case = Case("x", "1/s", failing, "y", lambda: nullcontext(lambda: 1.0))
    with pytest.raises(ZeroDivisionError):
        measure(case, 1, lambda line: None)
    assert diary == ["closed"]


def test_figures_are_medians_of_rates():
    result = sum_up(a_case(floor=0.5), [50, 60, 900], [100, 120, 1])
    assert (result.ours, result.reference_value, result.ratio) == (60, 100, 0.6)
    assert (result.name, result.unit, result.reference) == ("appends", "MiB/s", "a bare loop")
    assert result.floor == 0.5


def test_spread_is_from_the_10th_to_the_90th_percentile_over_the_median():
    assert spread([100.0 + step for step in range(11)]) == pytest.approx(8 / 105)
    assert spread([5.0, 5.0, 5.0]) == 0
    assert spread([5.0]) == 0


def test_the_spread_of_a_case_is_that_of_its_shakier_side():
    steady, shaky = [100.0] * 3, [90.0, 100.0, 110.0]
    assert sum_up(a_case(), steady, shaky).spread == pytest.approx(0.16)
    assert sum_up(a_case(), shaky, steady).spread == pytest.approx(0.16)


def test_a_floor_is_met_at_its_own_value_and_missed_below():
    assert a_result(ratio=0.8, floor=0.8).is_met
    assert not a_result(ratio=0.799, floor=0.8).is_met
    assert a_result(ratio=0.001, floor=None).is_met


def test_scale_multiplies_a_count_and_leaves_at_least_one():
    assert scaled(100, 1.0) == 100
    assert scaled(100, 0.25) == 25
    assert scaled(100, 0.0) == 1


def test_a_rate_is_the_amount_over_the_time_that_passed():
    done = []
    assert frame.rate(7.0, lambda: done.append(1)) > 0
    assert done == [1]


def test_json_has_exactly_the_promised_shape():
    assert report.as_json("journal", [a_result(floor=0.9)]) == {
        "bench": "journal",
        "cases": [
            {
                "name": "appends",
                "ours": 80.0,
                "unit": "MiB/s",
                "reference": "a bare loop",
                "reference_value": 100.0,
                "ratio": 0.8,
                "spread": 0.05,
            }
        ],
    }
    assert json.loads(json.dumps(report.as_json("journal", [])))["cases"] == []


@pytest.mark.parametrize(
    ("value", "text"),
    [(1234567.8, "1,234,568"), (100.4, "100"), (12.345, "12.3"), (0.01234, "0.0123")],
)
def test_a_figure_shows_the_digits_that_mean_something(value, text):
    assert report.figure(value) == text


def test_the_disk_bench_measures_every_case_and_leaves_nothing_behind(tmp_path):
    with place.working_directory(tmp_path) as directory:
        results = [measure(case, 1, lambda line: None) for case in disk.cases(directory, 0.0)]
        assert list(directory.iterdir()) == []
    assert [result.name for result in results] == [
        "4 KiB blocks, growing file",
        "64 KiB blocks, growing file",
        "1 MiB blocks, growing file",
    ]
    assert all(result.ours > 0 and result.reference_value > 0 for result in results)
    assert list(tmp_path.iterdir()) == []


def test_a_growing_file_begins_each_round_empty(tmp_path):
    with bare.growing(tmp_path, 512, 3)() as one_round:
        for _ in range(2):
            one_round()
            assert (tmp_path / "growing").stat().st_size == 3 * 512


def test_a_rewritten_file_is_whole_before_the_first_round(tmp_path):
    with bare.rewriting(tmp_path, 512, 3)() as one_round:
        assert (tmp_path / "rewriting").stat().st_size == 3 * 512
        one_round()
        assert (tmp_path / "rewriting").stat().st_size == 3 * 512


def test_every_bench_says_what_it_measures_in_one_line():
    for bench in registry.BENCHES.values():
        assert registry.about(bench).endswith(".")


def test_an_unknown_bench_is_rejected_with_the_known_names():
    with pytest.raises(Rejected, match=r"no bench called 'dsk'.*disk"):
        registry.find("dsk")


# Lines as the kernel prints them: a space in a path is \040, and fields before " - " vary.
MOUNTS = r"""
21 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
22 21 0:20 / /tmp rw,nosuid shared:2 master:1 - tmpfs tmpfs rw
23 22 254:1 / /tmp/disk rw - xfs /dev/vdb rw
24 21 0:21 / /mnt/my\040memory rw - ramfs none rw
25 21 254:2 / /data rw - ext4 /dev/vdc rw
26 21 0:22 / /data rw - tmpfs tmpfs rw
""".strip()


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/home/me", "ext4"),
        ("/tmp", "tmpfs"),
        ("/tmp/deep/er", "tmpfs"),
        ("/tmpfile", "ext4"),
        ("/tmp/disk/x", "xfs"),
        ("/mnt/my memory/x", "ramfs"),
        ("/data/x", "tmpfs"),
    ],
)
def test_the_deepest_and_latest_mount_holds_a_path(path, kind):
    assert place.file_system_of(Path(path), MOUNTS) == kind


def test_no_mount_holds_a_path_in_an_empty_table():
    assert place.file_system_of(Path("/x"), "") is None


def test_a_place_in_memory_is_refused_for_floors():
    memory = Path("/dev/shm")
    if not (memory.is_dir() and place.fsync_is_free(memory)):
        pytest.skip("this machine has no tmpfs at /dev/shm")
    with pytest.raises(Rejected, match="in memory"):
        place.check_is_disk(memory)
