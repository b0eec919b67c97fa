"""GRPO's stage asks further questions where groups have equal rewards, in both ways into TRL."""

import json
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from apprentice.envs.wire.server import EnvironmentServer
from apprentice.tasks.artifacts.local import LocalStore
from apprentice.tasks.artifacts.store_files import digest
from apprentice.tasks.engine.run import RunContext, StandingServers
from apprentice.tasks.engine.stage import StageContext
from apprentice.tasks.files.question_lists import read_learned, read_questions
from apprentice.tasks.grpo import _rows, grpo
from apprentice.tasks.rollouts import sampling
from apprentice.tasks.rollouts.rollout_modes import ROLLOUT_MODES
from apprentice.tasks.settings.grpo_settings import GrpoSpec
from tests.conftest import TASKS
from tests.tasks.engine.test_processes import Made
from tests.tasks.rollouts.test_rollout_modes import says

GROUP, GROUPS, BOUND = 4, 3, 9
SPEC = GrpoSpec(
    batch_size=6,
    gradient_accumulation=2,
    num_generations=GROUP,
    oversample=3.0,
    learning_rate=1e-2,
    scheduler="constant",
    warmup_steps=0,
    adam_epsilon=1e-5,
    max_steps=3,
    max_completion_length=96,
    reward="exact",
    logging_steps=1,
    checkpoint_steps=1,
)
Round = list[tuple[int, list[float]]]
"""Seed and rewards of each group."""
Add = Callable[[int], Any]
"""What is written behind an answer, by the rollout's place in its round."""


class Ran(NamedTuple):
    context: StageContext
    steps: list[list[Round]]
    """The rounds of each step that were played."""
    learned_from: list[list[tuple[tuple[int, ...], float]]]
    """The token ids and the advantage of each completion that a step learned from."""

    @property
    def log(self) -> list[dict[str, Any]]:
        return json.loads((self.context.out / "log.json").read_text())


@pytest.fixture(scope="module")
def made(server: EnvironmentServer, tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp("made")
    servers = StandingServers({"reasoning_gym": server}, None)
    return Made(RunContext(LocalStore(folder / "artifacts", "toy"), servers, report_to=[]), TASKS["chain_sum"], folder)


def one_is_as_said(place: int) -> Any:
    return place % GROUP or ""


def at_random(place: int) -> Any:
    """As the trainer's random numbers have it, which a resumed training must find where it left them."""
    import torch

    return int(torch.randint(0, 2, ())) or ""


def all_are_wrong(place: int) -> Any:
    return 9


def trained(made: Made, context: StageContext, spec: GrpoSpec, add: Add = one_is_as_said, fails_at: int = 0) -> Ran:
    """Runs the stage with a model that says one thing to a question, and adds to it. `fails_at`: the round of the
    second step that fails, which is counted from 1."""
    real, ran = ROLLOUT_MODES[spec.rollouts], Ran(context, [], [])

    def puppets(instance: Any, rollouts: Any) -> tuple[type, dict[str, Any]]:
        trainer_class, how = real(instance, rollouts)

        class Puppet(trainer_class):
            def _generate_single_turn(self, prompt_ids: Any, *_: Any, **__: Any) -> Any:
                texts = [says(self._tokenizer.decode(ids)) for ids in prompt_ids]
                texts = [text.replace('"}}', f'{add(place)}"}}}}') for place, text in enumerate(texts)]
                return [[*self._tokenizer.encode(text), self._tokenizer.eos_token_id] for text in texts], None

            def _prepare_inputs(self, generation_batch: Any) -> Any:
                if self._step % 2 == 0:
                    ran.steps.append([])
                return super()._prepare_inputs(generation_batch)

            def _calculate_rewards(self, inputs: Any, *given: Any) -> Any:
                rewards = super()._calculate_rewards(inputs, *given)
                starts = range(0, len(inputs), GROUP)
                groups = [(inputs[n]["seed"], rewards[n : n + GROUP, 0].tolist()) for n in starts]
                assert all(len({row["seed"] for row in inputs[n : n + GROUP]}) == 1 for n in starts)
                ran.steps[-1].append(groups)
                if (self.state.global_step, len(ran.steps[-1])) == (1, fails_at):
                    raise KeyboardInterrupt
                return rewards

        return Puppet, how

    def noting(trainer_class: type, *given: Any) -> type:
        class Noting(sampling.refilling(trainer_class, *given)):
            def _generate_and_score_completions(self, inputs: Any) -> Any:
                batch = super()._generate_and_score_completions(inputs)
                ids = [tuple(row.tolist()) for row in batch["completion_ids"]]
                ran.learned_from.append(list(zip(ids, batch["advantages"].tolist(), strict=True)))
                return batch

        return Noting

    with pytest.MonkeyPatch.context() as patched:
        patched.setitem(ROLLOUT_MODES, spec.rollouts, puppets)
        patched.setattr("apprentice.tasks.grpo.refilling", noting)
        grpo.body(context, spec, made.base, TASKS["chain_sum"], made.questions, 0)
    return ran


def differs(group: tuple[int, list[float]]) -> bool:
    return len(set(group[1])) > 1


def order(made: Made, spec: GrpoSpec) -> list[int]:
    used = [row for row in read_questions(made.work.store.fetch(made.questions), "grpo") if row["used"]]
    return [row["seed"] for row in _rows(TASKS["chain_sum"], used, spec, 0)]


def kept(rounds: list[Round]) -> list[int]:
    """The seeds that a step should learn from."""
    first, further = rounds[0], [group for each in rounds[1:] for group in each if differs(group)]
    return [seed if differs((seed, rewards)) or not further else further.pop(0)[0] for seed, rewards in first]


@pytest.fixture(scope="module", params=list(ROLLOUT_MODES))
def ran(made: Made, request: pytest.FixtureRequest) -> Ran:
    return trained(made, made.context(request.param), SPEC.model_copy(update={"rollouts": request.param}))


def test_further_questions_are_asked_in_their_order_until_the_groups_differ_or_the_bound_is_reached(
    made: Made, ran: Ran
):
    questions = order(made, SPEC)
    assert len(ran.steps) == SPEC.max_steps
    for step, rounds in enumerate(ran.steps):
        played_groups = [group for each in rounds for group in each]
        assert [seed for seed, _ in played_groups] == questions[step * BOUND :][: len(played_groups)]
        assert len(rounds[0]) == GROUPS
        assert len(played_groups) <= BOUND
        for n in range(1, len(rounds)):
            before = [group for each in rounds[:n] for group in each]
            assert sum(map(differs, before)) < GROUPS, "enough was known, and more was asked"
        assert sum(map(differs, played_groups)) >= GROUPS or len(played_groups) == BOUND
    assert any(len(rounds) > 1 for rounds in ran.steps), "no step needed more"
    assert any(sum(map(differs, rounds[0])) for rounds in ran.steps), "no step had a group that differs"


def test_what_was_asked_and_how_many_groups_were_dead_is_logged(ran: Ran):
    for entry, rounds in zip(ran.log, ran.steps, strict=True):
        played_groups = [group for each in rounds for group in each]
        assert entry["refill/questions"] == len(played_groups)
        assert entry["refill/dead_before"] == pytest.approx(1 - sum(map(differs, rounds[0])) / GROUPS)
        assert entry["refill/dead_after"] == pytest.approx(1 - min(sum(map(differs, played_groups)), GROUPS) / GROUPS)
        first = [reward for _, rewards in rounds[0] for reward in rewards]
        assert entry["reward"] == pytest.approx(sum(first) / len(first)), "the metrics are those without refill"


def test_all_that_was_asked_is_on_record_also_what_was_discarded(ran: Ran):
    played_groups = {seed for rounds in ran.steps for each in rounds for seed, _ in each}
    assert {row["seed"] for row in read_learned(ran.context.out)} == played_groups
    assert played_groups > {seed for rounds in ran.steps for seed in kept(rounds)}


def test_the_weights_are_those_of_a_training_that_asked_only_what_was_kept(
    made: Made, ran: Ran, monkeypatch: pytest.MonkeyPatch
):
    wanted = [seed for rounds in ran.steps for seed in kept(rounds)]
    every = _rows

    def only_kept(*given: Any) -> Any:
        rows = every(*given)
        place = {row.get("seed") or row["prompt"][-1]["seed"]: n for n, row in enumerate(rows)}
        return rows.select([place[seed] for seed in wanted])

    monkeypatch.setattr("apprentice.tasks.grpo._rows", only_kept)
    way = ran.context.key
    plain = SPEC.model_copy(update={"oversample": 1.0, "rollouts": way})
    again = trained(made, made.context(f"{way}-kept"), plain)
    assert [[seed for seed, _ in rounds[0]] for rounds in again.steps] == [kept(rounds) for rounds in ran.steps]
    assert again.learned_from == ran.learned_from
    assert digest(again.context.out, "*.safetensors") == digest(ran.context.out, "*.safetensors")


@pytest.mark.long
def test_a_training_that_was_killed_while_it_asked_further_questions_ends_with_the_same_weights(made: Made):
    whole = trained(made, made.context("whole"), SPEC, at_random)
    assert len(whole.steps[1]) > 1, "the second step was meant to ask further questions"
    context = made.context("killed")
    with pytest.raises(KeyboardInterrupt):
        trained(made, context, SPEC, at_random, fails_at=2)
    resumed = trained(made, context, SPEC, at_random)
    assert resumed.steps == whole.steps[1:]
    assert digest(context.out, "*.safetensors") == digest(whole.context.out, "*.safetensors")
    assert (context.out / "log.json").read_text() == (whole.context.out / "log.json").read_text()
    assert list(read_learned(context.out)) == list(read_learned(whole.context.out))


def test_a_step_without_any_signal_ends_at_the_bound_and_moves_no_weight(made: Made):
    spec = SPEC.model_copy(update={"max_steps": 1})
    ran = trained(made, made.context("hopeless"), spec, all_are_wrong)
    assert [len(each) for each in ran.steps[0]] == [GROUPS] * 3
    assert ran.log[0]["refill/questions"] == BOUND
    assert ran.log[0]["refill/dead_after"] == ran.log[0]["refill/dead_before"] == 1.0
    assert ran.log[0]["grad_norm"] == 0.0
