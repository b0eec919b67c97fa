"""GRPO's stage computes the instructions of its prompts once, in both ways into TRL, and publishes the same."""

import json
from typing import Any

import pytest

from apprentice.envs.wire.server import EnvironmentServer
from apprentice.tasks.artifacts.local import LocalStore
from apprentice.tasks.artifacts.types import BaseStudent
from apprentice.tasks.engine.run import RunContext, StandingServers
from apprentice.tasks.engine.stage import StageContext
from apprentice.tasks.grpo import grpo
from apprentice.tasks.models.checkpoints import save
from apprentice.tasks.models.tokenizer import prepare_tokenizer
from apprentice.tasks.rollouts.rollout_modes import ROLLOUT_MODES
from tests.conftest import TASKS
from tests.students_page import templates, toy_tokenizer
from tests.tasks.engine.test_processes import Made
from tests.tasks.rollouts.test_rollout_modes import says
from tests.tasks.test_one_prompt import tiny_model
from tests.tasks.test_what_grpo_skips import SPEC


@pytest.fixture(scope="module")
def made(server: EnvironmentServer, tmp_path_factory: pytest.TempPathFactory) -> Made:
    """With a student whose prompts are spelt out, as those of a model from the Hub."""
    import torch

    folder = tmp_path_factory.mktemp("made")
    servers = StandingServers({"reasoning_gym": server}, None)
    made = Made(RunContext(LocalStore(folder / "artifacts", "toy"), servers, report_to=[]), TASKS["chain_sum"], folder)
    tokenizer, out = prepare_tokenizer(toy_tokenizer(templates()["qwen2_5"])), made.context("spelt out").out
    torch.manual_seed(0)
    counts = save(tiny_model(tokenizer, positions=4096), tokenizer, out)
    made.base = made.work.store.publish(BaseStudent, "spelt-out", out, counts, {})
    return made


def trained(made: Made, way: str, share: bool) -> tuple[StageContext, list[Any]]:
    """What a stage published, and the rows and columns of each forward pass with a gradient."""
    import torch

    real, shapes = ROLLOUT_MODES[way], []

    def note(module: Any, given: Any, named: dict[str, Any]) -> None:
        if torch.is_grad_enabled():
            shapes.append(tuple(named["input_ids"].shape))

    def puppets(instance: Any, rollouts: Any) -> tuple[type, dict[str, Any]]:
        trainer_class, how = real(instance, rollouts)

        class Puppet(trainer_class):
            """Every second completion of a group is wrong."""

            def __init__(self, **given: Any):
                super().__init__(**given)
                self.model.register_forward_pre_hook(note, with_kwargs=True)

            def _generate_single_turn(self, prompt_ids: Any, *_: Any, **__: Any) -> Any:
                texts = [says(self._tokenizer.decode(ids)) for ids in prompt_ids]
                texts = [text.replace('"}}', f'{place % 2 or ""}"}}}}') for place, text in enumerate(texts)]
                return [[*self._tokenizer.encode(text), self._tokenizer.eos_token_id] for text in texts], None

        return Puppet, how

    context = made.context(f"{way}-{share}")
    update = {"rollouts": way, "share_prompts": share, "max_steps": 2, "max_completion_length": 512}
    with pytest.MonkeyPatch.context() as patched:
        patched.setitem(ROLLOUT_MODES, way, puppets)
        grpo.body(context, SPEC.model_copy(update=update), made.base, TASKS["chain_sum"], made.questions, 0)
    return context, shapes


@pytest.mark.parametrize("way", ["environment_factory", pytest.param("rollout_func", marks=pytest.mark.long)])
def test_the_same_weights_are_published_for_less(made: Made, way: str):
    import torch
    from safetensors.torch import load_file

    (plain, whole), (sharing, shared) = (trained(made, way, share) for share in (False, True))
    logs = [json.loads((context.out / "log.json").read_text()) for context in (plain, sharing)]
    assert min(entry["grad_norm"] for entry in logs[0]) > 1e-3, "nothing was learned"
    assert sum(rows * columns for rows, columns in shared) < sum(rows * columns for rows, columns in whole) / 3
    for name in ("reward", "loss", "grad_norm", "completions/mean_length"):
        assert [entry[name] for entry in logs[0]] == pytest.approx([entry[name] for entry in logs[1]], abs=1e-4), name
    weights = [load_file(context.out / "model.safetensors") for context in (plain, sharing)]
    for name, tensor in weights[0].items():
        torch.testing.assert_close(tensor, weights[1][name], rtol=1e-3, atol=1e-4)
