"""Names are plain, and `shop/orders` is read in one way."""

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import BadName, Rejected
from headrace.model.namespace import TopicName, is_name, parse_topic

LETTERS = string.ascii_letters + string.digits
names = st.builds(
    str.__add__, st.sampled_from(LETTERS), st.text(LETTERS + "._-", min_size=0, max_size=127)
)

BAD = [
    "",
    ".",
    "..",
    ".orders",
    "-orders",
    "_orders",
    "or ders",
    "orders\n",
    "orders\x00",
    "órders",
    "orders٣",  # a digit, but not of ours
    "a" * 65,
]


@given(names)
def test_a_plain_name_is_a_name(name):
    assert is_name(name)
    assert parse_topic(name) == TopicName("default", name)


@given(names, names)
def test_a_full_name_is_read_back(stream, topic):
    name = TopicName(stream, topic)
    assert parse_topic(str(name)) == name


def test_a_plain_name_is_in_the_default_stream():
    assert parse_topic("orders") == parse_topic("default/orders")
    assert str(parse_topic("orders")) == "default/orders"
    assert parse_topic("shop/orders") == TopicName("shop", "orders")


def test_a_name_may_have_64_characters_and_no_more():
    assert is_name("a" * 64)
    assert not is_name("a" * 65)


@pytest.mark.parametrize("name", BAD)
def test_a_bad_name_is_refused_wherever_it_stands(name):
    assert not is_name(name)
    for text in (name, f"shop/{name}", f"{name}/orders"):
        with pytest.raises(BadName):
            parse_topic(text)


@pytest.mark.parametrize("text", ["shop/orders/", "shop/orders/2", "/", "//", "shop//orders"])
def test_there_is_at_most_one_separator(text):
    with pytest.raises(BadName):
        parse_topic(text)


def test_the_error_says_which_part_is_wrong_and_what_is_allowed():
    with pytest.raises(BadName) as caught:
        parse_topic("my shop/orders")
    assert isinstance(caught.value, Rejected)
    assert (caught.value.what, caught.value.name) == ("stream", "my shop")
    assert str(caught.value) == (
        "'my shop' is not a valid name for a stream. "
        "Use 1 to 64 of A-Z a-z 0-9 . _ - starting with a letter or a digit"
    )


def test_a_very_long_name_does_not_fill_the_message():
    with pytest.raises(BadName) as caught:
        parse_topic("x" * 1_000_000)
    assert len(str(caught.value)) < 400


@given(st.text())
def test_any_text_is_a_name_or_refused(text):
    try:
        name = parse_topic(text)
    except BadName:
        return
    assert is_name(name.stream)
    assert is_name(name.topic)
