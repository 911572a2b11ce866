"""The table of words and the places that fill it in: none asks for what the other has not."""

import ast
import string
from collections.abc import Iterator
from pathlib import Path

import pytest

import headrace.doctor.findings
from headrace.doctor.findings.words import WORDS

ROOM = Path(next(iter(headrace.doctor.findings.__path__)))
PLACES = {"loss", "position", "first_op", "last_op"}
DOCS = Path(__file__).parents[2] / "docs" / "doctor.md"


def blanks(case: str) -> set[str]:
    """Return the blanks of a case."""
    words = WORDS[case]
    texts = (words.what, words.means, words.next)
    parsed = [each for text in texts for each in string.Formatter().parse(text)]
    return {name for _, name, _, _ in parsed if name}


def calls() -> Iterator[tuple[str, set[str]]]:
    """Give each case that is made somewhere, and the blanks that are filled in there."""
    for path in sorted(ROOM.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "finding":
                names = {each.arg for each in node.keywords if each.arg}
                for each in ast.walk(node.args[0]):
                    if isinstance(each, ast.Constant) and each.value in WORDS:
                        yield each.value, names


def strings() -> set[str]:
    """Return every text in the code of the room but for the table itself."""
    found: set[str] = set()
    for path in ROOM.glob("*.py"):
        code = ast.parse(path.read_text())
        for node in ast.walk(code):
            if isinstance(node, ast.AnnAssign) and getattr(node.target, "id", "") == "WORDS":
                node.value = None
        found |= {
            node.value
            for node in ast.walk(code)
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
        }
    return found


@pytest.mark.parametrize(("case", "given"), list(calls()))
def test_a_finding_is_given_all_that_its_words_ask_for(case, given):
    assert blanks(case) <= given | PLACES


def test_every_case_is_made_somewhere():
    known = strings()
    suffixes = (": covered", ": spared")  # a case of a kind that is given
    missing = [
        case
        for case in WORDS
        if case not in known
        and not any(case.endswith(end) and case.removesuffix(end) in known for end in suffixes)
    ]
    assert missing == []


def test_every_kind_is_in_the_docs():
    page = DOCS.read_text()
    kinds = {case.partition(":")[0] for case in WORDS}
    assert sorted(kind for kind in kinds if f"`{kind}`" not in page) == []
