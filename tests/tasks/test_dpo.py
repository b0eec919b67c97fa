"""DPO learns from pairs of one question: same prompt, a right and a wrong episode, no loss on a tool's reply."""

import json
from typing import Any

import pytest

from apprentice.envs.player import Player
from apprentice.envs.tools import tools_text
from apprentice.envs.wire.server import EnvironmentServer
from apprentice.tasks.artifacts.local import LocalStore
from apprentice.tasks.artifacts.store_files import digest
from apprentice.tasks.artifacts.types import GrpoCheckpoint
from apprentice.tasks.dpo import dpo, pairs_of, preference
from apprentice.tasks.dpo_settings import DpoSpec
from apprentice.tasks.engine.run import RunContext, StandingServers
from apprentice.tasks.engine.stage import StageContext
from apprentice.tasks.episodes.episode import prompt, turn_of
from apprentice.tasks.files.question_lists import read_learned
from apprentice.tasks.models.tokenizer import load_tokenizer
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.rollouts.groups import GROUPS, GroupLog, read_groups
from apprentice.tasks.training.complete_checkpoints import newest_checkpoint
from apprentice.tasks.training.trainer import read_log
from tests.conftest import TASKS
from tests.tasks.engine.test_processes import Made

SPEC = DpoSpec(batch_size=2, gradient_accumulation=1, learning_rate=1e-2, warmup_steps=0, epochs=2, checkpoint_steps=2)


def rollout(instance: Player, seed: int, answer: str, reward: float, step: int = 0) -> dict[str, Any]:
    called = turn_of("answer", {"answer": answer})
    reply = {"role": "tool", "name": "answer", "content": "The episode is over."}
    messages = [*prompt(instance, f"What is {seed}?"), called, reply]
    return {"step": step, "seed": seed, "reward": reward, "messages": messages, "tools": tools_text(instance.tools)}


@pytest.fixture(scope="module")
def made(server: EnvironmentServer, tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp("made")
    servers = StandingServers({"reasoning_gym": server}, None)
    return Made(RunContext(LocalStore(folder / "artifacts", "toy"), servers, report_to=[]), TASKS["chain_sum"], folder)


def played(made: Made, name: str, rows: list[dict[str, Any]]) -> GrpoCheckpoint:
    out = made.context(name).out
    (out / GROUPS).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return made.work.store.publish(GrpoCheckpoint, name, out, {"parameters": 1, "stage": "grpo"}, {})


@pytest.fixture(scope="module")
def groups(made: Made) -> GrpoCheckpoint:
    instance = TASKS["chain_sum"].make()
    rows = [rollout(instance, seed, str(number), float(number < 2)) for seed in range(4) for number in range(4)]
    return played(made, "groups".ljust(20, "0"), rows)


@pytest.fixture(scope="module")
def trained(made: Made, groups: GrpoCheckpoint) -> StageContext:
    context = made.context("dpo")
    dpo.body(context, SPEC, made.base, groups, 0)
    return context


def test_a_pair_has_a_right_and_a_wrong_episode_of_one_question_and_none_is_used_twice(
    made: Made, groups: GrpoCheckpoint
):
    pairs = list(pairs_of(made.work.store.fetch(groups), most=2))
    assert [(right["seed"], right["reward"], wrong["reward"]) for right, wrong in pairs] == [
        (seed, 1.0, 0.0) for seed in range(4) for _ in range(2)
    ]
    assert all(right["seed"] == wrong["seed"] for right, wrong in pairs)
    assert len(list(pairs_of(made.work.store.fetch(groups), most=1))) == 4


def test_a_thought_that_was_cut_off_is_in_no_pair(made: Made):
    instance = TASKS["chain_sum"].make()
    rows = [rollout(instance, 0, str(number), float(number < 1)) for number in range(3)]
    rows[1]["messages"][2]["cut_off"] = True
    cut = played(made, "cut".ljust(20, "0"), rows)
    assert [wrong for _, wrong in pairs_of(made.work.store.fetch(cut), most=2)] == [rows[2]]


def test_both_sides_begin_with_the_same_ids_and_only_the_call_has_a_loss(made: Made, groups: GrpoCheckpoint):
    folder = made.work.store.fetch(groups)
    tokenizer = load_tokenizer(made.work.store.fetch(made.base), [])
    right, wrong = next(pairs_of(folder, 1))
    row = preference(tokenizer, right, wrong)
    assert "What is 0?" in tokenizer.decode(row["prompt_ids"])
    for side, answer in (("chosen", "0"), ("rejected", "2")):
        ids, loss = row[f"{side}_ids"], row[f"{side}_loss"]
        learned = tokenizer.decode([each for each, has_loss in zip(ids, loss, strict=True) if has_loss])
        assert f'"{answer}"' in learned
        assert "The episode is over" not in learned
        assert "The episode is over" in tokenizer.decode(ids)
        assert "Done" not in tokenizer.decode(ids)


def test_what_trl_computes_a_loss_on_is_what_the_pair_says(made: Made, groups: GrpoCheckpoint):
    from apprentice.tasks.dpo import _collator

    tokenizer = load_tokenizer(made.work.store.fetch(made.base), [])
    rows = [preference(tokenizer, *pair) for pair in pairs_of(made.work.store.fetch(groups), 1)][:2]
    batch = _collator()(pad_token_id=tokenizer.pad_token_id)(rows)
    sides = [(row, side) for side in ("chosen", "rejected") for row in rows]
    for mask, (row, side) in zip(batch["completion_mask"].tolist(), sides, strict=True):
        whole = [0] * len(row["prompt_ids"]) + row[f"{side}_loss"]
        assert mask == whole + [0] * (len(mask) - len(whole))


def test_it_trains_away_from_the_wrong_episodes_and_says_what_it_learned_from(trained: StageContext):
    log = read_log(trained.out)
    assert log[-1]["rewards/margins"] > log[0]["rewards/margins"] == 0.0
    assert log[-1]["loss"] < log[0]["loss"]
    learned = [row["seed"] for row in read_learned(trained.out) if row["stage"] == "dpo"]
    assert sorted(learned) == [0, 1, 2, 3]
    assert (trained.out / "curves.png").exists()


@pytest.mark.long
def test_an_interrupted_training_ends_with_the_same_bits(
    made: Made, groups: GrpoCheckpoint, trained: StageContext, monkeypatch: pytest.MonkeyPatch
):
    import trl

    class Interrupted(trl.DPOTrainer):
        def training_step(self, *given: Any, **named: Any) -> Any:
            if self.state.global_step == 5:
                raise KeyboardInterrupt
            return super().training_step(*given, **named)

    context = made.context("interrupted")
    with monkeypatch.context() as patched:
        patched.setattr("trl.DPOTrainer", Interrupted)
        with pytest.raises(KeyboardInterrupt):
            dpo.body(context, SPEC, made.base, groups, 0)
    assert newest_checkpoint(context.scratch) is not None
    dpo.body(context, SPEC, made.base, groups, 0)
    assert digest(context.out, "*.safetensors") == digest(trained.out, "*.safetensors")
    assert read_log(context.out) == read_log(trained.out)


def test_without_a_pair_the_remedy_names_the_setting(made: Made):
    instance = TASKS["chain_sum"].make()
    alike = played(made, "alike".ljust(20, "0"), [rollout(instance, 1, "5", 1.0) for _ in range(3)])
    with pytest.raises(Stop, match=r"no pairs.*\n→ Set grpo.keep_groups: true"):
        dpo.body(made.context("without"), SPEC, made.base, alike, 0)


class Ended:
    """Rollouts of one batch."""

    def __init__(self, rewards: list[float | None]):
        self.rewards = rewards

    def played(self) -> Any:
        instance = TASKS["chain_sum"].make()
        for number, reward in enumerate(self.rewards):
            environment = TASKS["chain_sum"].make()
            environment.environment.reward = reward
            yield number // 4, rollout(instance, number // 4, "1", 0.0)["messages"], environment


def test_groups_are_kept_that_have_both_and_a_lost_rollout_is_in_none(tmp_path: Any):
    log = GroupLog(tmp_path)
    log.note(3, Ended([1.0, 0.0, None, 1.0, 1.0, 1.0, 1.0, 1.0]))  # type: ignore[arg-type]
    log.publish(tmp_path, tmp_path)
    (group,) = read_groups(tmp_path)
    assert [(row["seed"], row["reward"]) for row in group] == [(0, 1.0), (0, 0.0), (0, 1.0)]


def test_a_repeated_step_keeps_its_groups_once(tmp_path: Any):
    for step in (0, 1):
        GroupLog(tmp_path).note(step, Ended([1.0, 0.0, 0.0, 0.0]))  # type: ignore[arg-type]
    GroupLog(tmp_path).note(1, Ended([0.0, 1.0, 0.0, 0.0]))  # type: ignore[arg-type]
    GroupLog.publish(tmp_path, tmp_path)
    assert [[row["reward"] for row in group] for group in read_groups(tmp_path)] == [[1.0, 0, 0, 0], [0, 1.0, 0, 0]]
