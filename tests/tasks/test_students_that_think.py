"""A student that thinks, through the bodies of all stages: the same prompt, its thoughts learned, logged and priced."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from apprentice.envs.catalog import EnvironmentSpec
from apprentice.envs.reasoning_gym import working
from apprentice.envs.serving.process import local_server
from apprentice.envs.wire.server import EnvironmentServer
from apprentice.tasks.artifacts.local import LocalStore
from apprentice.tasks.artifacts.types import (
    BaseStudent,
    Checkpoint,
    Evaluation,
    GrpoCheckpoint,
    KeptRollouts,
    LengthStats,
    Questions,
    Rollouts,
    SftCheckpoint,
)
from apprentice.tasks.collect import collect_shard
from apprentice.tasks.engine.run import RunContext, StandingServers
from apprentice.tasks.engine.stage import StageContext
from apprentice.tasks.episodes.episode import prompt
from apprentice.tasks.episodes.record import EvaluatedEpisode, read_episodes
from apprentice.tasks.episodes.rendering import IGNORED, prompt_ids
from apprentice.tasks.episodes.thinking import CUT_OFF, THOUGHT, thinking_of
from apprentice.tasks.evaluate import evaluate
from apprentice.tasks.files.json_lines import read_rows
from apprentice.tasks.filter import filter_thoughts
from apprentice.tasks.grpo import grpo
from apprentice.tasks.lengths import lengths
from apprentice.tasks.mix import mix_thoughts
from apprentice.tasks.models.tokenizer import load_tokenizer
from apprentice.tasks.players import local_model
from apprentice.tasks.questions import questions
from apprentice.tasks.rollouts.rollout_modes import ROLLOUT_MODES
from apprentice.tasks.settings.endpoint import TeacherSpec
from apprentice.tasks.settings.grpo_settings import GrpoSpec
from apprentice.tasks.settings.sft_settings import SftSpec
from apprentice.tasks.settings.spec import (
    BuiltStudent,
    CollectSpec,
    EvaluateSpec,
    LengthsSpec,
    MixSpec,
    SeedWindows,
    StudentSpec,
    ThinkingSpec,
    Window,
)
from apprentice.tasks.sft import sft, train_sft
from apprentice.tasks.student import student
from apprentice.tasks.training.tracking.completions import read_completions
from tests.conftest import TASKS
from tests.tasks.evaluations import episode, evaluation, published

TASK = TASKS["chain_sum"]
ROOM = 80
THINKING = ThinkingSpec(mode="text", max_tokens=ROOM, instruction="Add by tens and ones.")
WINDOWS = SeedWindows(
    collect=Window(start=0, size=12), grpo=Window(start=100, size=12), evaluate=Window(start=200, size=8)
)
SMALL = BuiltStudent(hidden_size=32, intermediate_size=32, layers=1, heads=1, max_positions=768)
GRPO = GrpoSpec(
    batch_size=4,
    gradient_accumulation=1,
    num_generations=4,
    max_steps=1,
    logging_steps=1,
    max_completion_length=60,
    thought_cost=0.5,
    soft_overlong=20,
)


class Stages(NamedTuple):
    """What the stages made, each from the one before."""

    folder: Path
    work: RunContext
    questions: Questions
    base: BaseStudent
    rollouts: Rollouts
    kept: KeptRollouts
    lengths: LengthStats
    sft: SftCheckpoint

    def context(self, name: str) -> StageContext:
        return context(self.work, self.folder, name)

    def rows(self, artifact: Any, file: str) -> list[dict[str, Any]]:
        return read_rows(self.work.store.fetch(artifact) / file)

    def tokenizer(self, checkpoint: Checkpoint) -> Any:
        return load_tokenizer(self.work.store.fetch(checkpoint))


def context(work: RunContext, folder: Path, name: str) -> StageContext:
    out, scratch = folder / f"{name}-out", folder / f"{name}-scratch"
    out.mkdir()
    scratch.mkdir()
    return StageContext(work, name, out, scratch)


@pytest.fixture(scope="module")
def stages(server: EnvironmentServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stages]:
    folder = tmp_path_factory.mktemp("thinks")
    settings = json.dumps(TASK.settings)
    given = ("--environment", TASK.name, "--settings", settings, "--error-rate", "0.5")
    with local_server("apprentice.envs.serving.scripted_teacher", *given) as url:
        servers = StandingServers({"reasoning_gym": server}, f"{url}/v1")
        work = RunContext(LocalStore(folder / "artifacts", "toy"), servers, report_to=[])

        def made(kind: Any, body: Any, *given: Any) -> Any:
            own = context(work, folder, kind.suffix)
            return work.store.publish(kind, kind.suffix, own.out, body(own, *given), {})

        asked = made(Questions, questions.body, TASK, WINDOWS, 4)
        base = made(BaseStudent, student.body, StudentSpec(build=SMALL, thinking=THINKING), TASK, asked, 0)
        teacher = TeacherSpec(scripted_error_rate=0.5).teaching(THINKING)
        rollouts = made(Rollouts, collect_shard.body, CollectSpec(), teacher, TASK, WINDOWS.collect)
        kept = made(KeptRollouts, filter_thoughts.body, rollouts, asked, base)
        stats = made(LengthStats, lengths.body, LengthsSpec(), kept, base)
        spec = SftSpec(epochs=1, batch_size=2, gradient_accumulation=1, checkpoint_steps=100)
        trained = made(SftCheckpoint, sft.body, spec, base, kept, stats, 0)
        yield Stages(folder, work, asked, base, rollouts, kept, stats, trained)


def test_every_checkpoint_keeps_how_its_student_thinks(stages: Stages):
    for checkpoint in (stages.base, stages.sft):
        assert thinking_of(stages.tokenizer(checkpoint)) == THINKING


def test_the_prompt_asks_for_the_thought_and_the_rows_do_not(stages: Stages):
    [row, *_] = stages.rows(stages.kept, "kept.jsonl")
    tokenizer = stages.tokenizer(stages.sft)
    shown = tokenizer.decode(prompt_ids(tokenizer, row["messages"][:2], json.loads(row["tools"])))
    assert shown.count(THINKING.instruction) == 1
    assert THINKING.instruction not in json.dumps(row)


def test_the_teachers_working_is_kept_and_its_wrong_ones_are_dropped(stages: Stages):
    rows = stages.rows(stages.kept, "kept.jsonl")
    assert rows
    for row in rows:
        (turn,) = [message for message in row["messages"] if message["role"] == "assistant"]
        text, answer = working.chain_sum(row["messages"][1]["content"], None)
        assert turn[THOUGHT] == text
        given = json.loads(turn["tool_calls"][0]["function"]["arguments"])
        assert given["answer"].rstrip(".") == answer, "Reasoning Gym takes a full stop"
    assert stages.kept.dropped["wrong answer"] > 0
    examples = json.loads((stages.work.store.fetch(stages.kept) / "dropped.json").read_text())
    assert examples.keys() == stages.kept.dropped.keys(), "each cause with an example"
    assert all({"seed", "turns"} == each.keys() for each in examples.values())


def test_rounds_learn_no_thought_of_anybody_that_the_filter_would_drop(stages: Stages):
    [row, *others] = stages.rows(stages.kept, "kept.jsonl")
    turn = row["messages"][2]

    def thinking(seed: int, **thought: Any) -> dict[str, Any]:
        return row | {"seed": seed, "messages": [*row["messages"][:2], turn | thought]}

    cut = thinking(901, reasoning_content="1 + ", cut_off=True)
    loop = thinking(902, reasoning_content="So. " * 9)
    tried = [
        episode(place, 1.0, seed=each["seed"], messages=each["messages"]) for place, each in enumerate([row, cut, loop])
    ]
    tries = evaluation(stages.work.store, "tried", tried)
    lines = "".join(json.dumps(each) + "\n" for each in [loop, *others])
    counts = {"episodes": len(others) + 1, "kept": len(others) + 1, "dropped": {}}
    earlier = published(stages.work.store, KeptRollouts, "earlier", {"kept.jsonl": lines}, counts)
    own = stages.context("mix")
    given = (MixSpec(replay=0.9), TASK, stages.questions, None, tries, {"0": earlier}, "", 0, stages.base)
    found = mix_thoughts.body(own, *given)
    assert found["dropped"] == {"thought cut off": 1, "thought that repeats itself": 1}
    examples = json.loads((own.out / "dropped.json").read_text())
    assert {cause: each["seed"] for cause, each in examples.items()} == {
        "thought cut off": 901,
        "thought that repeats itself": 902,
    }
    learned = read_rows(own.out / "kept.jsonl")
    assert len(learned) == 1 + len(others)
    assert all("So. So." not in json.dumps(each) for each in learned)


def test_sft_has_loss_on_the_thought_and_the_call_and_on_nothing_before(
    stages: Stages, monkeypatch: pytest.MonkeyPatch
):
    datasets: list[Any] = []

    def noting(context: Any, title: str, trainer: Any, steps: int) -> None:
        datasets.append(trainer.train_dataset)
        raise KeyboardInterrupt

    monkeypatch.setattr("apprentice.tasks.sft.train", noting)
    with pytest.raises(KeyboardInterrupt):
        train_sft(stages.context("noted"), SftSpec(), stages.base, stages.kept, stages.lengths, 0)
    tokenizer, (rows,) = stages.tokenizer(stages.base), datasets
    episodes = stages.rows(stages.kept, "kept.jsonl")
    assert len(rows) == len(episodes)
    for row, each in zip(rows, episodes, strict=True):
        learned = tokenizer.decode([token for token in row["labels"] if token != IGNORED])
        assert learned.startswith(each["messages"][2][THOUGHT] + "\n<tool_call>")
        assert "OK." not in learned


def test_lengths_count_the_thoughts(stages: Stages):
    tokenizer, [row, *_] = stages.tokenizer(stages.base), stages.rows(stages.kept, "kept.jsonl")
    without = len(prompt_ids(tokenizer, row["messages"][:2], json.loads(row["tools"])))
    assert stages.lengths.p50 > without + len(row["messages"][2][THOUGHT]) // 2


# --- GRPO -----------------------------------------------------------------------------------------------------------


def answers(thought: str, answer: str, ends: bool = True) -> str:
    call = json.dumps({"name": "answer", "arguments": {"answer": answer}})
    return f"{thought}\n<tool_call>\n{call}\n</tool_call><|im_end|>" if ends else thought


def right(question: str) -> tuple[str, str]:
    return working.chain_sum(re.findall(r"State the final answer.*?=", question)[-1], None)


@pytest.fixture(scope="module")
def trained(stages: Stages) -> Path:
    """The checkpoint after a step whose group thinks well, not at all, too long, and without an end."""
    real = ROLLOUT_MODES["environment_factory"]

    def saying(instance: Any, rollouts: Any) -> tuple[type, dict[str, Any]]:
        trainer_class, how = real(instance, rollouts)

        class Saying(trainer_class):
            def _generate_single_turn(self, prompt_ids: Any, *_: Any, **__: Any) -> Any:
                text, answer = right(self._tokenizer.decode(prompt_ids[0]))
                said = [answers(text, answer), answers("", answer), answers("1" * (ROOM + 1), answer), "1 + 1 = "]
                return [self._tokenizer.encode(each) for each in said], None

        return Saying, how

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(ROLLOUT_MODES, "environment_factory", saying)
        own = stages.context("grpo")
        counts = grpo.body(own, GRPO, stages.sft, TASK, stages.questions, 0)
    found = stages.work.store.publish(GrpoCheckpoint, "grpo", own.out, counts, {})
    return stages.work.store.fetch(found)


@pytest.fixture(scope="module")
def log(trained: Path) -> dict[str, float]:
    return json.loads((trained / "log.json").read_text())[0]


def test_the_completions_that_are_kept_for_reading_have_their_thoughts(trained: Path):
    thought, none, long, _ = (row.get("thought", "") for row in read_completions(trained))
    assert " = " in thought
    assert not none
    assert "1" * ROOM in long


def test_grpo_logs_what_thoughts_cost_and_how_many_were_cut_off(log: dict[str, float]):
    assert log["thought/cut_off"] == 0.5, "one is over its budget, one has no end"
    assert log["thought/tokens"] > ROOM / 4
    assert log["completions/clipped_ratio"] == 0.25, "as TRL counts: without a token that ends the turn"


def test_thoughts_that_are_cut_off_score_the_lowest(log: dict[str, float]):
    assert log["own_reward"] == 0.5, "two of four are right"
    assert log["unfinished"] == 0.5


def test_thoughts_cost_what_the_recipe_says_beside_the_environments_reward(log: dict[str, float]):
    assert log["rewards/thought_cost/mean"] == pytest.approx(-log["thought/tokens"] / 100)
    assert log["reward"] < log["own_reward"]
    assert any("overlong" in name for name in log)


def test_a_rollout_has_room_for_the_thought_beside_its_completion(stages: Stages, log: dict[str, float]):
    assert log["completions/max_length"] > GRPO.max_completion_length
    assert log["completions/max_length"] <= GRPO.max_completion_length + ROOM


def test_no_turn_thinks_through_the_budgets_of_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    game = EnvironmentSpec(name="number", settings={"most": 15, "guesses": 4})
    real, limits = ROLLOUT_MODES["environment_factory"], []

    def thinking_on(instance: Any, rollouts: Any) -> tuple[type, dict[str, Any]]:
        trainer_class, how = real(instance, rollouts)

        class ThinkingOn(trainer_class):
            def _generate_single_turn(self, prompt_ids: Any, *_: Any, **__: Any) -> Any:
                assert self.generation_config.repetition_penalty == 1.1, "the recipe's own argument"
                limits.append((self.max_completion_length, self.generation_config.max_new_tokens))
                return [self._tokenizer.encode("1 ") * limits[-1][1] for _ in prompt_ids], None

        return ThinkingOn, how

    monkeypatch.setitem(ROLLOUT_MODES, "environment_factory", thinking_on)
    with local_server("apprentice.envs.serving.serve", "number", "--max-sessions", "4") as url:
        servers = StandingServers({"number": EnvironmentServer(url=url, sessions=4)}, None)
        work = RunContext(LocalStore(tmp_path / "artifacts", "toy"), servers, report_to=[])
        asking = context(work, tmp_path, "questions")
        counts = questions.body(asking, game, WINDOWS, 4)
        asked = work.store.publish(Questions, "questions", asking.out, counts, {})
        making = context(work, tmp_path, "base")
        made = student.body(making, StudentSpec(build=SMALL, thinking=THINKING), game, asked, 0)
        base = work.store.publish(BaseStudent, "base", making.out, made, {})
        own = GRPO.model_copy(update={"args": {"generation_kwargs": {"repetition_penalty": 1.1}}})
        grpo.body(context(work, tmp_path, "grpo"), own, base, game, asked, 0)
    calls = GRPO.max_completion_length
    assert limits == [(calls + 4 * ROOM, calls + ROOM)], "and after such a turn none follows"


# --- evaluation -----------------------------------------------------------------------------------------------------


class Scripted:
    """Writes what it is told, as a model does: some tokens at a time, after whatever the prompt ends with."""

    def __init__(self, tokenizer: Any):
        self.tokenizer = tokenizer
        self.most: list[int] = []

    def generate(self, prompts: list[list[int]], most: int) -> list[list[int]]:
        self.most.append(most)
        found = []
        for ids in prompts:
            shown = self.tokenizer.decode(ids)
            text, answer = right(shown)
            so_far = shown.rpartition("</think>\n\n")[2]
            if so_far.endswith('{"answer": "'):
                rest = answer if text in so_far else "0"
                found.append(self.tokenizer.encode(f'{rest}"}}}}\n</tool_call><|im_end|>')[:most])
            else:
                found.append(self.tokenizer.encode(answers(text, answer))[:most])
        return found


def evaluated(
    stages: Stages, monkeypatch: pytest.MonkeyPatch, **given: Any
) -> tuple[list[EvaluatedEpisode], list[int]]:
    """The episodes of an evaluation in which a script writes for the model, and the most tokens of each generation."""
    script = Scripted(stages.tokenizer(stages.sft))
    monkeypatch.setattr(
        local_model.LocalModel,
        "_written",
        lambda self, prompts, episodes, most, part="": script.generate(prompts, most),
    )
    spec = EvaluateSpec.model_validate({"questions": 4, "max_new_tokens": 48, "batch_size": 4} | given)
    name = f"evaluate-{'-'.join(map(str, given.values()))}"
    own = stages.context(name)
    counts = evaluate.body(own, spec, stages.sft, TASK, stages.questions, 0)
    found = stages.work.store.publish(Evaluation, name, own.out, counts, {})
    return read_episodes(stages.work.store.fetch(found)), script.most


def test_an_evaluation_has_room_for_the_thought_and_records_it(stages: Stages, monkeypatch: pytest.MonkeyPatch):
    records, most = evaluated(stages, monkeypatch)
    assert most == [48 + ROOM]
    assert all(record.is_right and record.valid for record in records)
    for record in records:
        assert record.messages[2][THOUGHT] == working.chain_sum(record.question, None)[0]
        assert record.completion_tokens > len(stages.tokenizer(stages.sft).encode(record.messages[2][THOUGHT]))


def test_a_thought_that_is_forced_empty_is_followed_by_the_call(stages: Stages, monkeypatch: pytest.MonkeyPatch):
    records, most = evaluated(stages, monkeypatch, thought_budget=0.0)
    assert most == [48]
    assert [record.valid for record in records] == [True] * 4
    assert not any(message.get(THOUGHT) or message.get(CUT_OFF) for each in records for message in each.messages)
    assert not any(record.is_right for record in records), "the script is right only after its thought"


def test_a_thought_ends_at_its_part_of_the_budget(stages: Stages, monkeypatch: pytest.MonkeyPatch):
    records, most = evaluated(stages, monkeypatch, thought_budget=0.125)
    assert most == [10, 48]
    for record in records:
        assert record.valid
        thought = record.messages[2][THOUGHT]
        assert working.chain_sum(record.question, None)[0].startswith(thought)
        assert 8 <= len(stages.tokenizer(stages.sft).encode(thought)) <= 10


def test_a_thought_that_ends_before_its_budget_is_as_it_would_be(stages: Stages, monkeypatch: pytest.MonkeyPatch):
    whole, _ = evaluated(stages, monkeypatch, thought_budget=1.0)
    assert all(record.is_right for record in whole)
    assert [record.messages[2][THOUGHT] for record in whole] == [
        working.chain_sum(record.question, None)[0] for record in whole
    ]


def test_every_answer_follows_another_questions_thought_where_they_are_swapped(
    stages: Stages, monkeypatch: pytest.MonkeyPatch
):
    records, most = evaluated(stages, monkeypatch, swapped_thoughts=True)
    assert most == [ROOM, 48]
    own = [working.chain_sum(record.question, None)[0] for record in records]
    found = [record.messages[2][THOUGHT] for record in records]
    assert sorted(found) == sorted(own)
    assert all(one != other for one, other in zip(own, found, strict=True))
    assert [(record.valid, record.is_right) for record in records] == [(True, False)] * 4


def test_a_question_that_is_alone_in_its_batch_gets_another_ones_thought_as_well(
    stages: Stages, monkeypatch: pytest.MonkeyPatch
):
    records, _ = evaluated(stages, monkeypatch, swapped_thoughts=True, batch_size=1)
    own = [working.chain_sum(record.question, None)[0] for record in records]
    found = [record.messages[2].get(THOUGHT, "") for record in records]
    assert all(one != other for one, other in zip(own, found, strict=True))
    assert [bool(thought) for thought in found].count(False) == 1, "the first that was asked"


def test_the_prompt_of_every_stage_is_the_same(stages: Stages, monkeypatch: pytest.MonkeyPatch):
    prompts: list[list[int]] = []

    def noting(self: Any, ahead: Any, episodes: Any, most: int, part: str = "") -> Any:
        prompts.extend(ahead)
        return [self._tokenizer.encode("<|im_end|>") for _ in ahead]

    monkeypatch.setattr(local_model.LocalModel, "_written", noting)
    spec = EvaluateSpec(questions=4, batch_size=4)
    evaluate.body(stages.context("prompts"), spec, stages.sft, TASK, stages.questions, 0)
    tokenizer, player = stages.tokenizer(stages.base), TASK.make()
    rows = stages.rows(stages.questions, "questions.jsonl")
    asked = [row["question"] for row in rows if row["purpose"] == "evaluate" and row["used"]]
    rendered = [prompt_ids(tokenizer, prompt(player, text), player.schemas) for text in asked]
    assert sorted(prompts) == sorted(rendered)
