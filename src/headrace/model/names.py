"""What streams and topics may be called, and how `shop/orders` is read."""

import re
from dataclasses import dataclass
from typing import Final

from headrace.errors import BadName

NAME_SIZE_MAX: Final = 64  # fits a file name with room for what others put around it
DEFAULT_STREAM: Final = "default"  # always there: plain `orders` is `default/orders`

# ASCII alone: no two names look the same, and none is a path, an option or a hidden file.
_NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{NAME_SIZE_MAX - 1}}}")
_SEPARATOR = "/"


@dataclass(frozen=True, slots=True)
class TopicName:
    """A topic as users write it, with its stream said."""

    stream: str
    topic: str

    def __str__(self) -> str:
        return f"{self.stream}{_SEPARATOR}{self.topic}"


def is_name(text: str) -> bool:
    """Say whether a stream, a topic or an option may be called `text`."""
    return _NAME.fullmatch(text) is not None


def check_name(what: str, text: str) -> str:
    """Return `text`, or raise BadName; `what` is the word for it in the message."""
    if not is_name(text):
        raise BadName(what, text)
    return text


def parse_topic(text: str) -> TopicName:
    """Read `stream/topic`, or `topic` in the default stream."""
    stream, separator, topic = text.partition(_SEPARATOR)
    if not separator:
        return TopicName(DEFAULT_STREAM, check_name("topic", text))
    return TopicName(check_name("stream", stream), check_name("topic", topic))
