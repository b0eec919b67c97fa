"""GRPO's stage leaves out groups with equal rewards, in both ways into TRL, and publishes the same."""

import json
from typing import Any

import pytest

from apprentice.envs.wire.server import EnvironmentServer
from apprentice.tasks.artifacts.local import LocalStore
from apprentice.tasks.engine.run import RunContext, StandingServers
from apprentice.tasks.engine.stage import StageContext
from apprentice.tasks.files.question_lists import read_learned
from apprentice.tasks.grpo import grpo
from apprentice.tasks.rollouts.rollout_modes import ROLLOUT_MODES
from apprentice.tasks.settings.grpo_settings import GrpoSpec
from tests.conftest import TASKS
from tests.tasks.engine.test_processes import Made
from tests.tasks.rollouts.test_rollout_modes import says

SPEC = GrpoSpec(
    batch_size=6,
    gradient_accumulation=2,
    num_generations=4,
    learning_rate=1e-2,
    scheduler="constant",
    warmup_steps=0,
    adam_epsilon=1e-5,
    max_steps=3,
    max_completion_length=96,
    reward="exact",
    logging_steps=1,
)


@pytest.fixture(scope="module")
def made(server: EnvironmentServer, tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp("made")
    servers = StandingServers({"reasoning_gym": server}, None)
    return Made(RunContext(LocalStore(folder / "artifacts", "toy"), servers, report_to=[]), TASKS["chain_sum"], folder)


def trained(made: Made, way: str, skip: bool) -> tuple[StageContext, list[int]]:
    """What a stage published, and the rows of each forward pass with a gradient. The model says one thing to a question
    and adds a digit in three rollouts of four: where the first is wrong, the group has no signal."""
    import torch

    real, rows = ROLLOUT_MODES[way], []

    def puppets(instance: Any, rollouts: Any) -> tuple[type, dict[str, Any]]:
        trainer_class, how = real(instance, rollouts)

        class Puppet(trainer_class):
            def _generate_single_turn(self, prompt_ids: Any, *_: Any, **__: Any) -> Any:
                texts = [says(self._tokenizer.decode(ids)) for ids in prompt_ids]
                texts = [text.replace('"}}', f'{place % 4 or ""}"}}}}') for place, text in enumerate(texts)]
                return [[*self._tokenizer.encode(text), self._tokenizer.eos_token_id] for text in texts], None

            def _get_per_token_logps_and_entropies(self, model: Any, input_ids: Any, *given: Any, **more: Any) -> Any:
                rows.extend([len(input_ids)] if torch.is_grad_enabled() else [])
                return super()._get_per_token_logps_and_entropies(model, input_ids, *given, **more)

        return Puppet, how

    context = made.context(f"{way}-{skip}")
    spec = SPEC.model_copy(update={"rollouts": way, "skip_dead_groups": skip})
    with pytest.MonkeyPatch.context() as patched:
        patched.setitem(ROLLOUT_MODES, way, puppets)
        grpo.body(context, spec, made.base, TASKS["chain_sum"], made.questions, 0)
    return context, rows


@pytest.mark.parametrize("way", ["environment_factory", pytest.param("rollout_func", marks=pytest.mark.long)])
def test_the_same_weights_are_published_for_less(made: Made, way: str):
    import torch
    from safetensors.torch import load_file

    (plain, all_rows), (skipping, some_rows) = (trained(made, way, skip) for skip in (False, True))
    logs = [json.loads((context.out / "log.json").read_text()) for context in (plain, skipping)]
    dead = [entry["frac_reward_zero_std"] for entry in logs[0]]
    assert 0.0 < sum(dead) < len(dead), "groups with and without signal were meant to be there"
    assert sum(all_rows) == SPEC.rollouts_a_step * SPEC.max_steps
    assert sum(some_rows) == round(sum(12 * (1 - share) for share in dead))
    for name in ("reward", "loss", "grad_norm", "completions/mean_length", "frac_reward_zero_std"):
        assert [entry[name] for entry in logs[0]] == pytest.approx([entry[name] for entry in logs[1]], abs=1e-5), name
    weights = [load_file(context.out / "model.safetensors") for context in (plain, skipping)]
    for name, tensor in weights[0].items():
        torch.testing.assert_close(tensor, weights[1][name], rtol=1e-3, atol=1e-4)
    assert list(read_learned(plain.out)) == list(read_learned(skipping.out)), "what was skipped was asked all the same"
