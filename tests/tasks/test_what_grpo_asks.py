"""GRPO's stage asks more of the kinds of questions that the model answers right half of the time, in both ways into
TRL."""

from collections import Counter
from typing import Any

import pytest

from apprentice.envs.wire.server import EnvironmentServer
from apprentice.tasks.artifacts.local import LocalStore
from apprentice.tasks.artifacts.store_files import digest
from apprentice.tasks.engine.run import RunContext, StandingServers
from apprentice.tasks.episodes.texts import same_text
from apprentice.tasks.files.question_lists import read_learned, read_questions
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.rollouts.rollout_modes import ROLLOUT_MODES
from apprentice.tasks.settings.grpo_settings import CurriculumSpec
from apprentice.tasks.statistics.question_kinds import QUESTIONS, RATE
from tests.conftest import TASKS
from tests.tasks.engine.test_processes import Made
from tests.tasks.test_what_grpo_refills import SPEC, Ran, at_random, one_is_as_said, trained

EASY, HARD = "terms 2", "terms 3"
ASKS = SPEC.model_copy(
    update={"oversample": 1.0, "max_steps": 6, "curriculum": CurriculumSpec(by=("terms",), known={EASY: (600, 0)})}
)
FILLS = ASKS.model_copy(update={"oversample": 2.0, "max_steps": 3})


@pytest.fixture(scope="module")
def made(server: EnvironmentServer, tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp("made")
    servers = StandingServers({"reasoning_gym": server}, None)
    return Made(RunContext(LocalStore(folder / "artifacts", "toy"), servers, report_to=[]), TASKS["chain_sum"], folder)


def kinds(made: Made) -> dict[int, str]:
    instance = TASKS["chain_sum"].make()
    rows = read_questions(made.work.store.fetch(made.questions), "grpo")
    return {row["seed"]: f"terms {instance.slices(row['seed'], row['question'])['terms']}" for row in rows}


def seeds_by_step(ran: Ran) -> list[list[int]]:
    """The seeds of each step."""
    return [[seed for each in rounds for seed, _ in each] for rounds in ran.steps]


@pytest.fixture(scope="module", params=list(ROLLOUT_MODES))
def ran(made: Made, request: pytest.FixtureRequest) -> Ran:
    spec = ASKS.model_copy(update={"rollouts": request.param})
    return trained(made, made.context(f"asks-{request.param}"), spec, at_random)


def test_the_kind_of_which_the_probe_had_everything_right_is_hardly_asked(made: Made, ran: Ran):
    kind_of = kinds(made)
    assert min(Counter(kind_of.values()).values()) > 4, "else the questions themselves decide"
    counts = Counter(kind_of[seed] for step in seeds_by_step(ran) for seed in step)
    assert counts[HARD] > 2 * counts[EASY] > 0


def test_no_question_is_asked_again_before_all_of_its_kind_were(made: Made, ran: Ran):
    kind_of = kinds(made)
    for kind in (EASY, HARD):
        seeds = [seed for step in seeds_by_step(ran) for seed in step if kind_of[seed] == kind]
        own = sum(each == kind for each in kind_of.values())
        assert len(set(seeds[:own])) == min(own, len(seeds))


def test_the_log_says_what_was_asked_and_the_rate_of_each_kind(made: Made, ran: Ran):
    kind_of = kinds(made)
    answers = {EASY: [600.0, 0.0], HARD: [0.0, 0.0]}
    for entry, rounds in zip(ran.log, ran.steps, strict=True):
        answers = {kind: [0.95 * each for each in counts] for kind, counts in answers.items()}
        for seed, rewards in rounds[0]:
            answers[kind_of[seed]][0] += rewards.count(1.0)
            answers[kind_of[seed]][1] += len(rewards) - rewards.count(1.0)
        for kind, (right, wrong) in answers.items():
            assert entry[QUESTIONS + kind] == sum(kind_of[seed] == kind for seed, _ in rounds[0])
            assert entry[RATE + kind] == pytest.approx((right + 1) / (right + wrong + 2))
        assert "refill/questions" not in entry


def test_all_that_was_asked_is_on_record_and_nothing_of_it_is_asked_by_the_evaluation(made: Made, ran: Ran):
    learned = read_learned(ran.context.out)
    assert {row["seed"] for row in learned} == {seed for step in seeds_by_step(ran) for seed in step}
    held_out = read_questions(made.work.store.fetch(made.questions), "evaluate")
    evaluation_texts = {same_text(row["question"]) for row in held_out if row["used"]}
    assert not evaluation_texts & {same_text(row["question"]) for row in learned}


@pytest.mark.long
@pytest.mark.parametrize("spec", [ASKS, FILLS], ids=["asks", "fills"])
def test_a_training_that_was_killed_goes_on_with_the_questions_it_would_have_asked(made: Made, spec: Any):
    name, fails_at = f"of-{spec.oversample:g}", 2 if spec is FILLS else 1
    whole = trained(made, made.context(f"whole-{name}"), spec, at_random)
    context = made.context(f"killed-{name}")
    with pytest.raises(KeyboardInterrupt):
        trained(made, context, spec, at_random, fails_at=fails_at)
    resumed = trained(made, context, spec, at_random)
    assert resumed.steps == whole.steps[1:]
    assert digest(context.out, "*.safetensors") == digest(whole.context.out, "*.safetensors")
    assert (context.out / "log.json").read_text() == (whole.context.out / "log.json").read_text()
    assert list(read_learned(context.out)) == list(read_learned(whole.context.out))


def test_with_refill_what_was_discarded_is_evidence_as_well(made: Made):
    ran = trained(made, made.context("fills"), FILLS, one_is_as_said)
    for entry, rounds in zip(ran.log, ran.steps, strict=True):
        every = sum(len(each) for each in rounds)
        assert entry["refill/questions"] == entry[QUESTIONS + EASY] + entry[QUESTIONS + HARD] == every
    assert any(len(rounds) > 1 for rounds in ran.steps)


@pytest.mark.parametrize(
    ("by", "says"),
    [
        ((), r"all questions are of one slice(?s:.)*answer digits, digits, sign, terms"),
        (("turms",), r"no question of reasoning_gym chain_sum has the tag 'turms'(?s:.)*terms"),
    ],
)
def test_questions_of_one_kind_are_refused_with_the_traits_that_there_are(made: Made, by: tuple[str, ...], says: str):
    spec = ASKS.model_copy(update={"curriculum": CurriculumSpec(by=by)})
    with pytest.raises(Stop, match=says):
        trained(made, made.context(f"refused-{len(by)}"), spec)
