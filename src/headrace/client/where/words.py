"""Splits a condition into words: names, values and signs, each with its position.

name   := letters, digits, _ and dots, or anything in `backticks`
string := '…' or "…"; a quote inside is doubled
number := 10, -2.5, 1e6
time   := 2026-11-15, 2026-11-15T10:00Z, without quotes
sign   := == = != <> < <= > >= ( ) ,
"""

import re
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from headrace.client.show import printable
from headrace.errors import BadRequest

TEXT_MAX: Final = 10_000  # characters; more than anyone types
_AROUND: Final = 60  # characters before and after a position that a message shows

KEYWORDS: Final = frozenset({"and", "or", "not", "in", "is", "null", "true", "false"})


class BadWhere(BadRequest):
    """A condition that cannot be parsed or evaluated, with the position."""

    def __init__(
        self, text: str, position: int, flaw: str, *, hint: str = "", name: str = "where"
    ) -> None:
        super().__init__(f"{name}: {flaw}", hint=hint)
        self.text = text
        self.position = position
        self.flaw = flaw

    def called(self, name: str) -> "BadWhere":
        """Return the same error under another name, such as an option's."""
        return BadWhere(self.text, self.position, self.flaw, hint=self.hint, name=name)

    def __str__(self) -> str:
        from rich.cells import cell_len

        start = max(0, self.position - _AROUND)
        before = printable(self.text[start : self.position])
        behind = printable(self.text[self.position : self.position + _AROUND])
        return f"{super().__str__()}\n  {before}{behind}\n  {' ' * cell_len(before)}^"


class TokenKind(Enum):
    """The kind of a word."""

    NAME = auto()
    KEYWORD = auto()
    STRING = auto()
    NUMBER = auto()
    TIME = auto()
    SIGN = auto()
    END = auto()


@dataclass(frozen=True, slots=True)
class Word:
    """One word: its text without quotes, and its position."""

    kind: TokenKind
    text: str
    position: int

    @property
    def shown(self) -> str:
        return "the end" if self.kind is TokenKind.END else repr(self.text)

    def says(self, *texts: str) -> bool:
        """Say whether it is one of these signs or keywords."""
        return self.kind in (TokenKind.SIGN, TokenKind.KEYWORD) and self.text in texts


_WORD: Final = re.compile(
    r"""\s*(?:
      (?P<time>\d{4}-\d\d-\d\d(?:T[0-9:.]+(?:Z|[-+]\d\d:?\d\d)?)?)
    | (?P<number>-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?)
    | '(?P<single>(?:[^']|'')*)'
    | "(?P<double>(?:[^"]|"")*)"
    | `(?P<quoted>[^`]+)`
    | (?P<name>[^\W\d]\w*(?:\.\w+)*)
    | (?P<sign>==|!=|<>|<=|>=|[=<>(),])
    )""",
    re.VERBOSE,
)


def words_of(text: str) -> list[Word]:
    """Return the words of a condition; the last one is its end."""
    if len(text) > TEXT_MAX:
        raise BadWhere(text, TEXT_MAX, f"longer than {TEXT_MAX:,} characters")
    found: list[Word] = []
    position = 0
    while text[position:].strip():
        match = _WORD.match(text, position)
        if match is None:
            raise _no_word(text, position)
        found.append(_word(match))
        position = match.end()
    return [*found, Word(TokenKind.END, "", len(text.rstrip()))]


def _word(match: re.Match[str]) -> Word:
    group = match.lastgroup
    assert group is not None
    text = match[group]
    start = match.end() - len(match[0].lstrip())
    match group:
        case "single":
            return Word(TokenKind.STRING, text.replace("''", "'"), start)
        case "double":
            return Word(TokenKind.STRING, text.replace('""', '"'), start)
        case "quoted":
            return Word(TokenKind.NAME, text, start)
        case "name" if text.lower() in KEYWORDS:
            return Word(TokenKind.KEYWORD, text.lower(), start)
        case _:
            return Word(TokenKind[group.upper()], text, start)


def _no_word(text: str, position: int) -> BadWhere:
    place = position + len(text[position:]) - len(text[position:].lstrip())
    letter = text[place]
    if letter in "'\"`":
        return BadWhere(text, place, f"a {letter} is opened but not closed")
    instead = {"&": "Use and", "|": "Use or", "!": "Use not or !="}.get(letter, "")
    return BadWhere(text, place, f"{letter!r} is not allowed here", hint=instead)
