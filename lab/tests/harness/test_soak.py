"""`make soak`: which campaigns there are, and how one that holds, fails or hangs is told."""

import re
import time
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
from tests.docs_commands import look_up

from headrace_lab.harness import soak
from headrace_lab.harness.soak import CAMPAIGNS, Campaign, Verdict, chosen, main, run

DOCUMENT = Path(__file__).parents[3] / "docs" / "testing.md"


def a_campaign(program, **changes):
    given = {"name": "made-up", "minutes": 1, "command": f'-c "{program}"', "says": "cases"}
    return Campaign(**{**given, **changes})


@pytest.mark.parametrize(
    ("program", "verdict", "said"),
    [
        ("print('9 cases'); print('more')", Verdict.HELD, "9 cases"),
        ("print('9 cases'); raise SystemExit(7)", Verdict.NOT_SHOWN, "9 cases"),
        ("print('lost a row'); raise SystemExit(1)", Verdict.FAILED, "lost a row"),
        ("raise SystemExit(139)", Verdict.FAILED, "printed nothing"),
    ],
)
def test_a_campaign_is_told_by_its_exit_code_and_its_line(tmp_path, program, verdict, said):
    ending = run(a_campaign(program), 1, tmp_path)
    assert (ending.verdict, ending.said) == (verdict, said)
    assert Path(ending.output).exists()


def test_a_campaign_beyond_its_budget_is_ended_with_its_children_and_was_not_shown(tmp_path):
    child = "import time; time.sleep(600)"
    program = (
        "import subprocess, sys, time; "
        f"print(subprocess.Popen([sys.executable, '-c', '{child}']).pid, flush=True); "
        "time.sleep(600)"
    )
    ending = run(a_campaign(program, minutes=0.02), 1, tmp_path)
    assert ending.verdict is Verdict.NOT_SHOWN
    assert "budget" in ending.said
    pid = int(Path(ending.output).read_text())
    deadline = time.monotonic() + 10
    while _is_alive(pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not _is_alive(pid)


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_one_that_does_not_hear_the_request_to_end_is_killed(tmp_path, monkeypatch):
    monkeypatch.setattr(soak, "GRACE_SECONDS", 0.2)
    program = "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(600)"
    assert run(a_campaign(program, minutes=0.02), 1, tmp_path).verdict is Verdict.NOT_SHOWN


@pytest.mark.parametrize(
    ("endings", "code"),
    [(("0",), 0), (("0", "7"), 7), (("7", "1", "0"), 1)],
)
def test_the_worst_campaign_decides_the_exit_code(monkeypatch, capsys, endings, code):
    campaigns = tuple(
        a_campaign(f"raise SystemExit({each})", name=f"c{number}")
        for number, each in enumerate(endings)
    )
    monkeypatch.setattr(soak, "CAMPAIGNS", campaigns)
    assert main([]) == code
    told = capsys.readouterr().out.splitlines()
    assert len(told) == len(endings) + 2  # what runs, a line for each, and the sum
    assert re.fullmatch(r"\d+ held, \d+ failed, \d+ not shown", told[-1])


def test_a_part_is_a_name_or_what_names_begin_with():
    assert [each.name for each in chosen(["sim"])] == ["sim", "sim-unsafe", "sim-bugs"]
    assert chosen([]) == list(CAMPAIGNS)
    with pytest.raises(
        ValueError, match="there is no campaign simm; the campaigns are suite, "
    ):
        chosen(["simm"])


def test_an_unknown_part_exits_with_2_and_names_those_there_are(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--part", "simm"])
    assert ended.value.code == 2
    assert "chaos-cluster" in capsys.readouterr().err


def test_the_seed_of_a_soak_is_handed_on(tmp_path):
    campaign = a_campaign("import sys; print('cases', sys.argv[1:])", says="cases")
    campaign = replace(campaign, command=campaign.command + " --seed {seed}")
    assert run(campaign, 4711, tmp_path).said == "cases ['--seed', '4711']"


def test_every_campaign_is_a_command_that_exists_and_is_on_the_page():
    page = DOCUMENT.read_text(encoding="utf-8")
    for campaign in CAMPAIGNS:
        words = campaign.words(1)[1:]
        assert words[0] == "-m"
        if words[1] == "headrace_lab":
            look_up(" ".join(["headrace", *words[2:]]))
        else:
            assert find_spec(words[1])
        assert f"`{campaign.name}`" in page


def test_each_name_is_given_once():
    names = [each.name for each in CAMPAIGNS]
    assert len(set(names)) == len(names)
