"""The teacher's answers beside the environment's own."""

import json
from collections import Counter
from pathlib import Path

from apprentice.envs.player import Player
from apprentice.envs.reasoning_gym import datasets
from apprentice.tasks.statistics.calibration import calibration, slices_of
from tests.tasks.episodes.test_episode import Guess


def test_the_teacher_is_counted_overall_and_by_kind_of_question(chain_sum, tmp_path: Path):
    """Ten real questions; the teacher adds its answer up wrong wherever it is negative, and once says nothing."""
    settings = chain_sum.settings
    rows = []
    for seed in range(999, 1019):
        entry = datasets.entry(settings["dataset"], settings["config"], seed)[1]
        is_right = not entry["answer"].startswith("-")
        said = entry["answer"] if is_right else "0"
        call = {"function": {"name": "answer", "arguments": json.dumps({"answer": said})}}
        messages = [{}, {"content": entry["question"]}, {"tool_calls": [call]}]
        rows.append(
            {"seed": seed, "messages": messages, "reward": float(is_right), "correct": entry["answer"], "failed_at": ""}
        )
    rows.append({"seed": 5, "messages": [], "reward": None, "correct": "", "failed_at": "teacher"})
    rows.append({"seed": 6, "messages": [], "reward": None, "correct": "", "failed_at": "environment"})
    (tmp_path / "rollouts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    found = calibration(tmp_path, chain_sum)
    negative = next(row for row in found["slices"] if row["kind"] == "negative")
    assert (negative["accuracy"], negative["n"] > 2) == (0.0, True)
    assert next(row for row in found["slices"] if row["kind"] == "positive")["accuracy"] == 1.0
    assert found["compared"]["same text, right"] == 20 - negative["n"]
    assert found["compared"]["other text, not right"] == negative["n"]
    assert (found["episodes"], found["lost"]) == (21, 1)
    assert found["accuracy"] == (20 - negative["n"]) / 21
    assert found["ci"][0] < found["accuracy"] < found["ci"][1]


class Numbered(Guess):
    """Every question is of a kind of its own."""

    def slices(self, seed: int, question: str) -> dict[str, int | str]:
        return {"number": seed}


def test_each_figure_of_a_slice_has_as_many_episodes_behind_it_as_it_says(chain_sum, tmp_path: Path, monkeypatch):
    """Also the rare kinds, which are counted together as others; what infrastructure lost belongs to none."""
    game = Player(Numbered(chain_sum.make().environment.settings))
    monkeypatch.setattr(type(chain_sum), "make", lambda _: game)
    played = {"messages": [{}, {"content": "?"}], "reward": 1.0, "correct": "", "failed_at": ""}
    rows = [played | {"seed": number % 20} for number in range(30)]
    rows[29] |= {"reward": None, "failed_at": "environment"}
    (tmp_path / "rollouts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    measured = calibration(tmp_path, chain_sum)["slices"]
    counted = Counter(name for row in rows for name in slices_of(row, game, measured))
    assert counted == {f"{each['trait']} {each['kind']}": each["n"] for each in measured}
    assert counted["number others"] == 29 - 2 * 8
    assert slices_of(rows[0], game, []) == [], "without a figure there is no slice"


def test_a_scorer_that_disagrees_with_its_own_answer_is_seen(chain_sum, tmp_path: Path):
    call = {"function": {"name": "answer", "arguments": '{"answer": "7.0"}'}}
    row = {
        "seed": 1,
        "messages": [{}, {"content": "?"}, {"tool_calls": [call]}],
        "reward": 1.0,
        "correct": "7",
        "failed_at": "",
    }
    (tmp_path / "rollouts.jsonl").write_text(json.dumps(row) + "\n")
    assert calibration(tmp_path, chain_sum)["compared"]["other text, right"] == 1
