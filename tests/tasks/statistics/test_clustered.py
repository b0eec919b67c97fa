"""Samples of one question are no further questions: one interval for them, and everything that shows one asks it."""

import json
import random
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from apprentice.flows.compare_models import compared
from apprentice.tasks.analysis import reward_hacking
from apprentice.tasks.analysis.comparison import compare_all
from apprentice.tasks.analysis.difficulty import assessment, difficulty
from apprentice.tasks.analysis.past_rounds import _with_worth
from apprentice.tasks.artifacts.local import LocalStore
from apprentice.tasks.artifacts.provenance import parent
from apprentice.tasks.artifacts.types import Evaluation
from apprentice.tasks.episodes.record import EvaluatedEpisode
from apprentice.tasks.evaluate import rates
from apprentice.tasks.lineage.node import node_of
from apprentice.tasks.players.protocols import PROTOCOLS
from apprentice.tasks.statistics.calibration import calibration
from apprentice.tasks.statistics.differences import paired_difference
from apprentice.tasks.statistics.intervals import Interval, clustered_interval, wilson, worth
from apprentice.tasks.statistics.rates import by_question, evaluated_interval, rate, with_intervals
from apprentice.tasks.statistics.slices import slices
from tests.tasks.evaluations import episode, evaluation, published

ROOT = Path(__file__).parents[3]


def alike(right: int, questions: int, samples: int) -> list[list[float]]:
    """All samples of a question agree."""
    return [[float(question < right)] * samples for question in range(questions)]


def independent(share: float, questions: int, samples: int) -> list[list[float]]:
    rng = random.Random(11)
    return [[float(rng.random() < share) for _ in range(samples)] for _ in range(questions)]


@pytest.mark.parametrize(("right", "questions"), [(0, 1), (1, 1), (0, 40), (12, 48), (24, 25), (400, 400), (34, 50)])
@pytest.mark.parametrize("samples", [1, 2, 8])
def test_samples_that_agree_are_worth_their_question_and_one_sample_each_is_wilsons(
    right: int, questions: int, samples: int
):
    by_question = alike(right, questions, samples)
    assert clustered_interval(by_question) == wilson(right, questions)
    assert worth(by_question) == pytest.approx(questions)


@pytest.mark.parametrize("wrong", [1, 2, 4])
def test_a_wrong_sample_does_not_make_25_questions_more(wrong: int):
    """Of 8 samples each; a bootstrap over the questions would give 98.5% to 100%, and Wilson's of 200 answers 97.2%."""
    by_question = alike(25, 25, 8)
    whole = clustered_interval(by_question)
    by_question[0] = [0.0] * wrong + [1.0] * (8 - wrong)
    low, high = clustered_interval(by_question)
    assert whole == wilson(25, 25)
    assert low < whole[0] + 0.005
    assert high < 1.0
    assert 25 <= worth(by_question) < 35


@pytest.mark.parametrize("share", [0.2, 0.5, 0.9])
def test_samples_that_are_independent_are_worth_nearly_all_their_answers(share: float):
    by_question = independent(share, 1000, 4)
    assert 3600 < worth(by_question) <= 4000, "seed 11"
    right = sum(map(sum, by_question))
    assert clustered_interval(by_question) == pytest.approx(wilson(right, 4000), abs=2e-3)


def test_no_samples_are_worth_more_than_they_are():
    """Every question is right in half of its samples, which chance seldom does."""
    assert worth([[1.0, 0.0]] * 500) == 1000


@pytest.mark.parametrize(
    ("by_question", "least", "most"),
    [
        ([[1.0] * 8, [0.0]], 1.0, 1.5),
        ([[1.0] * 2, [0.0] * 2, [1.0], [0.0]], 3.4, 3.8),
        ([[1.0], [1.0], [1.0, 1.0]], 2.5, 3.0),
    ],
)
def test_a_question_with_more_samples_than_others_is_still_one_question(
    by_question: list[list[float]], least: float, most: float
):
    assert least <= worth(by_question) <= most


@pytest.mark.parametrize(("a", "b"), [(0.3, 0.3), (2.0, 1.0), (9.0, 1.0), (1.0, 30.0)])
def test_the_interval_covers_the_rate_as_often_as_it_claims(a: float, b: float):
    """Questions of very different, somewhat different and nearly equal rates; 30 of 8 samples."""
    rng = random.Random(5)
    hits = 0
    for _ in range(300):
        chances = [rng.betavariate(a, b) for _ in range(30)]
        low, high = clustered_interval([[float(rng.random() < each) for _ in range(8)] for each in chances])
        hits += low <= a / (a + b) <= high
    assert hits >= 278, "seed 5: 285 are 95%"


def test_scores_are_no_successes():
    assert clustered_interval([[0.5, 0.7], [0.4, 0.4]]) == pytest.approx((0.4, 0.6))


SHOWN = wilson(24, 25)
MANY = [
    episode(8 * question + sample, float(question != 7), seed=question, sample=sample, question=f"Q {question}?")
    for question in range(25)
    for sample in range(8)
]
NONE = [record.model_copy(update={"reward": 0.0}) for record in MANY]


def evaluated(records: Sequence[EvaluatedEpisode]) -> Evaluation:
    about: dict[str, Any] = {"repository": "a/b", "revision": "c", "key": "d", "model": "m", "protocol": "parity"}
    return Evaluation(**about, cost_usd=0.0, **rates(list(records), PROTOCOLS["parity"]))


def of_older_code(folder: Path) -> Interval:
    """Stored without what its samples are worth; its episodes are there."""
    store = LocalStore(folder / "artifacts", "toy")
    counts = {**rates(MANY, PROTOCOLS["parity"]), "model": "m", "protocol": "parity", "cost_usd": 0.0}
    counts = {name: value for name, value in counts.items() if name not in ("questions", "worth")}
    lines = b"".join(record.line() for record in MANY).decode()
    files, settings = {"episodes.jsonl": lines}, {"spec": {"samples": 8}}
    made = published(store, Evaluation, "e" * 20, files, counts, settings=settings)
    return evaluated_interval(_with_worth(node_of(store, parent(made), {})))


def of_the_teacher(folder: Path, environment: Any) -> Interval:
    """Rows of a dataset: eight answers to each question."""
    rows = [
        {"seed": each.seed, "messages": [{}, {"content": each.question}], "reward": each.reward}
        | {"correct": "", "failed_at": ""}
        for each in MANY
    ]
    (folder / "rollouts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return calibration(folder, environment)["ci"]


def of_a_slice() -> Interval:
    sliced = [each.model_copy(update={"traits": json.dumps({"half": int(each.seed == 0)})}) for each in MANY]
    others = [each.model_copy(update={"place": each.place + 200, "traits": '{"half": 1}'}) for each in MANY[:8]]
    found = slices({"m": [*sliced, *others]})
    return next(row for row in found if row["kind"] == "0")["models"]["m"]["ci"]


def of_a_regression() -> Interval:
    return compare_all({"m": MANY}, {"words.before": MANY, "words.after": NONE})["guards"][0]["before"]["ci"]


CALLERS: dict[str, Callable[[Path, Any], Interval]] = {
    "ladder and probe": lambda *_: difficulty(evaluated(MANY)).ci,
    "history": lambda *_: evaluated_interval(evaluated(MANY)),
    "history of older code": lambda folder, _: of_older_code(folder),
    "long run": lambda *_: rate(MANY)["ci"],
    "report": lambda *_: with_intervals(MANY)["ci"]["accuracy"],
    "regression evaluations": lambda *_: of_a_regression(),
    "apprentice evaluate, Inspect": lambda *_: compared({"m": MANY}, {"m": 0}, "parity")["models"]["m"]["ci"][
        "accuracy"
    ],
    "teacher": of_the_teacher,
    "signs": lambda *_: clustered_interval(by_question(MANY, reward_hacking._is_right).values()),
}


@pytest.mark.parametrize("shown", CALLERS.values(), ids=CALLERS)
def test_24_of_25_questions_in_8_samples_each_are_shown_as_24_of_25(
    shown: Callable[[Path, Any], Interval], tmp_path: Path, chain_sum: Any
):
    assert tuple(shown(tmp_path, chain_sum)) == pytest.approx(SHOWN)


def test_a_slice_has_the_interval_of_its_questions():
    assert tuple(of_a_slice()) == pytest.approx(wilson(23, 24))


def test_a_level_is_not_mastered_by_samples():
    found = difficulty(evaluated(MANY))
    assert (found.reading, found.not_ruled_out) == ("too easy", ["right"])
    assert (found.n, evaluated(MANY).n) == (25, 200)
    assert "of 25 questions" in assessment(found)


def test_counts_of_one_sample_each_are_as_they_were(tmp_path: Path):
    """They enter the revision of every evaluation."""
    one = rates(MANY[::8], PROTOCOLS["parity"])
    assert [*one] == ["n", "broken", "unfinished", "format_compliance", "accuracy", "mean_score"]
    assert {"questions", "worth"} <= rates(MANY, PROTOCOLS["parity"]).keys()
    store = LocalStore(tmp_path / "artifacts", "toy")
    made = evaluation(store, "e" * 20, MANY[::8])
    counts = store.record(Evaluation, made.key, made.revision).counts
    assert counts.keys() == {*one, "model", "protocol", "cost_usd"}
    assert made.revision == "adf26eece52762b4dda191a6380f9c4b1dedbbaf", "as older code named it"
    several = evaluation(store, "f" * 20, MANY)
    assert store.record(Evaluation, several.key, several.revision).counts["questions"] == 25
    assert store.find(Evaluation, several.key) == several
    assert several.worth == pytest.approx(25)


@pytest.mark.parametrize("samples", [1, 8])
def test_a_sign_is_not_seen_in_samples_of_a_few_questions(samples: int):
    """Three of ten questions are rewarded without a call: in eight samples each, 24 of 80 episodes."""
    silent = [{"role": "user", "content": "Question?"}]

    def played(is_silent: Callable[[int], bool]) -> list[EvaluatedEpisode]:
        return [
            episode(
                samples * question + sample, 1.0, sample=sample, **({"messages": silent} if is_silent(question) else {})
            )
            for question in range(10)
            for sample in range(samples)
        ]

    before, after = played(lambda question: question < 1), played(lambda question: question < 4)
    assert [sign.kind for sign in reward_hacking.reward_hacking(before, after, None)] == []


def test_a_slice_falls_by_questions_and_not_by_samples():
    """Forty samples of five questions of a slice are five questions: too few to say that it fell."""

    def played(right: Callable[[int], bool]) -> list[EvaluatedEpisode]:
        return [
            episode(8 * n + k, float(right(n)), sample=k, traits=json.dumps({"small": int(n < 5)}))
            for n in range(60)
            for k in range(8)
        ]

    before, after = played(lambda n: n < 10), played(lambda n: n >= 5)
    signs = reward_hacking.reward_hacking(before, after, None)
    assert "a slice fell" not in [sign.kind for sign in signs]


def test_a_difference_is_of_questions():
    before, after = [0.0] * 25, [float(n != 7) for n in range(25)]
    assert paired_difference(before, after)["p_value"] == pytest.approx(2 / 2**24)
    compared_ones = compare_all({"a": NONE, "b": MANY}, {})["comparisons"][0]
    assert compared_ones["p_value"] == pytest.approx(2 / 2**24)
    assert compared_ones["won"] == 24


def test_no_other_file_makes_an_interval_of_counts_by_itself():
    """Wilson's takes answers to different questions; what has samples goes through `clustered_interval`."""
    alone = re.compile(r"\bwilson\(|proportion_confint|\bbeta\.ppf|1\.96|binomtest")
    found = {
        file.relative_to(ROOT).as_posix()
        for room in ("envs", "tasks", "flows", "deployments")
        for file in (ROOT / room).rglob("*")
        if file.suffix in (".py", ".j2", ".js") and alone.search(file.read_text())
    }
    assert found == {"tasks/statistics/intervals.py"}
    source = (ROOT / "tasks/statistics/intervals.py").read_text()
    callers = re.findall(
        r"^def (\w+)(?:(?!^def ).)*?\bwilson\(", source.replace("def wilson(", "def of_wilson ("), re.M | re.S
    )
    assert callers == ["clustered_interval", "interval_of"]
