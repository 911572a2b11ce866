"""Times as people write them, and as they are shown."""

from datetime import UTC, datetime, timedelta

import pytest

from headrace.cli.terminal.times import iso, place_of, shown_seconds
from headrace.client.values.parse import moment_of
from headrace.errors import BadRequest


@pytest.mark.parametrize("word", ["earliest", "latest"])
def test_the_ends_are_words(word):
    assert place_of(word, "--from") == word


def test_a_number_is_an_offset():
    assert place_of("17", "--from") == 17
    assert place_of("0", "--from") == 0


def test_a_time_with_its_zone_is_a_moment():
    noon = datetime(2026, 11, 15, 12, tzinfo=UTC)
    assert place_of("2026-11-15T12:00Z", "--from") == noon
    assert place_of("2026-11-15T14:00:00+02:00", "--from") == noon
    assert place_of("2026-11-15 12:00:00Z", "--from") == noon


@pytest.mark.parametrize(("text", "ago"), [("-10m", 600), ("-2d", 172_800), ("now", 0)])
def test_a_length_of_time_counts_back_from_now(text, ago):
    found = moment_of(text)
    assert abs(datetime.now(UTC) - timedelta(seconds=ago) - found) < timedelta(seconds=5)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "2026-11-15T12:00",
            "--from: '2026-11-15T12:00' has no time zone. Write 2026-11-15T12:00Z",
        ),
        ("2026-11-15", "Write 2026-11-15T00:00Z for UTC"),
        (
            "yesterday",
            "'yesterday' is not a valid time. Give an offset, 2026-11-15T10:00Z, -10m, now",
        ),
        ("-10", "is not a valid time"),
        ("-10 parsecs", "is not a valid time"),
        ("-10x", "does not have a duration unit"),
        ("-99999999d", "too far in the past"),
        ("", "is not a valid time"),
        ("1" * 20, "is not a valid offset"),
        ("\x1b[31m", "'\\x1b[31m' is not a valid time"),
    ],
)
def test_what_is_no_place_is_named_with_what_would_be(text, said):
    with pytest.raises(BadRequest) as caught:
        place_of(text, "--from")
    assert said in str(caught.value)


def test_moments_are_shown_in_utc():
    assert iso(datetime(2026, 11, 15, 12, tzinfo=UTC)) == "2026-11-15T12:00:00Z"


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0.0, "0 s"),
        (0.34, "0.3 s"),
        (9.94, "9.9 s"),
        (12.4, "12 s"),
        (59.9, "1m 0s"),
        (200, "3m 20s"),
        (7_260, "2h 1m"),
        (187_200, "2d 4h"),
    ],
)
def test_lengths_of_time_are_short(seconds, shown):
    assert shown_seconds(seconds) == shown
