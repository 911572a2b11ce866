"""Durations and sizes read as they are written, exactly or not at all."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import BadConfig
from headrace.model.units import (
    DAY,
    GIB,
    HOUR,
    KIB,
    MIB,
    MILLISECOND,
    MINUTE,
    NUMBER_MAX,
    SECOND,
    TIB,
    Duration,
    format_duration,
    format_size,
    parse_duration,
    parse_size,
)


@pytest.mark.parametrize(
    ("text", "duration"),
    [
        ("0s", Duration(0)),
        ("1us", Duration(1)),
        ("5ms", 5 * MILLISECOND),
        ("30s", 30 * SECOND),
        ("5m", 5 * MINUTE),
        ("36h", 36 * HOUR),
        ("7d", 7 * DAY),
        ("007d", 7 * DAY),
    ],
)
def test_a_duration_is_read(text, duration):
    assert parse_duration(text) == duration


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("4096", 4096),
        ("1B", 1),
        ("8KiB", 8 * KIB),
        ("64MiB", 64 * MIB),
        ("4GiB", 4 * GIB),
        ("2TiB", 2 * TIB),
        ("1KB", 1_000),
        ("1MB", 1_000_000),
        ("1GB", 1_000_000_000),
        ("1TB", 10**12),
        (str(NUMBER_MAX), NUMBER_MAX),
    ],
)
def test_a_size_is_read(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize(
    ("duration", "text"),
    [
        (Duration(0), "0s"),
        (90 * SECOND, "90s"),
        (120 * SECOND, "2m"),
        (7 * DAY, "7d"),
        (36 * HOUR, "36h"),
        (Duration(1_001), "1001us"),
    ],
)
def test_a_duration_is_written_in_its_largest_exact_unit(duration, text):
    assert format_duration(duration) == str(duration) == text


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0B"),
        (1, "1B"),
        (1023, "1023B"),
        (1024, "1KiB"),
        (64 * MIB, "64MiB"),
        (10**12, "1TB"),
        (1_000_000_000, "1GB"),
        (1000 * KIB, "1000KiB"),
    ],
)
def test_a_size_is_written_exactly_and_shortly(size, text):
    assert format_size(size) == text


@given(st.integers(0, NUMBER_MAX))
def test_what_is_written_reads_back(number):
    assert parse_size(format_size(number)) == number
    assert parse_duration(format_duration(Duration(number))) == Duration(number)


@pytest.mark.parametrize(
    ("text", "flaw"),
    [
        (
            "",
            "'' is not a valid duration. "
            "Write a whole number and a unit, such as 30s, 5m or 7d",
        ),
        ("30", "'30' has no unit. Write 30s for seconds"),
        ("30 s", "'30 s' is not a valid duration. Did you mean 30s?"),
        ("30S", "'30S' does not have a duration unit. Did you mean 30s?"),
        ("2w", "'2w' does not have a duration unit. The units are us, ms, s, m, h, d"),
        (
            "-5s",
            "'-5s' is not a valid duration. "
            "Write a whole number and a unit, such as 30s, 5m or 7d",
        ),
        (
            "1.5h",
            "'1.5h' is not a valid duration. "
            "Write a whole number and a unit, such as 30s, 5m or 7d",
        ),
        ("9223372036854775808us", "'9223372036854775808us' is too large for a duration"),
        ("200000000d", "'200000000d' is too large for a duration"),
    ],
)
def test_a_bad_duration_is_named_exactly(text, flaw):
    with pytest.raises(BadConfig) as caught:
        parse_duration(text)
    assert str(caught.value) == flaw


@pytest.mark.parametrize(
    ("text", "flaw"),
    [
        ("64mib", "'64mib' does not have a size unit. Did you mean 64MiB?"),
        ("64 MiB", "'64 MiB' is not a valid size. Did you mean 64MiB?"),
        ("1kB", "'1kB' does not have a size unit. Did you mean 1KB?"),
        (
            "64M",
            "'64M' does not have a size unit. "
            "The units are B, KB, MB, GB, TB, KiB, MiB, GiB, TiB",
        ),
        ("9223372036854775808", "'9223372036854775808' is too large for a size"),
        ("8388608TiB", "'8388608TiB' is too large for a size"),
        (
            "MiB",
            "'MiB' is not a valid size. Write a whole number and a unit, such as 64MiB or 1GB",
        ),
    ],
)
def test_a_bad_size_is_named_exactly(text, flaw):
    with pytest.raises(BadConfig) as caught:
        parse_size(text)
    assert str(caught.value) == flaw


@pytest.mark.parametrize(
    "text",
    [
        "1" * 5000,
        "1" * 5000 + "s",
        "٣s",
        "\uff15s",
        "1s\n",
        "\n1s",
        "1\x00s",
        "\udcffs",
        "1_0s",
        "+1s",
    ],
)
@pytest.mark.parametrize("parse", [parse_duration, parse_size])
def test_hostile_text_is_refused_in_one_short_line(parse, text):
    with pytest.raises(BadConfig) as caught:
        parse(text)
    said = str(caught.value)
    assert len(said) < 300
    assert said.isprintable()


@given(st.text(max_size=30))
def test_no_text_raises_anything_else(text):
    for parse in (parse_duration, parse_size):
        try:
            parse(text)
        except BadConfig:
            continue


def test_milliseconds_never_cut_a_wait_short():
    assert Duration(1).ms == 1
    assert Duration(1_000).ms == 1
    assert (30 * SECOND).ms == 30_000
    assert (30 * SECOND).seconds == 30.0


def test_durations_order_by_length():
    assert 999 * MILLISECOND < SECOND < MINUTE < HOUR < DAY
