"""A vLLM server is looked at before a model is loaded, and gives each rollout the completion of its own prompt."""

from collections.abc import Callable
from typing import Any

import pytest

from apprentice.envs.pool import EnvironmentPool
from apprentice.tasks.episodes.rendering import TEMPLATE_ARGUMENTS
from apprentice.tasks.files.question_lists import TrainedQuestions
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.rollouts.live_rollouts import LiveRollouts
from apprentice.tasks.rollouts.question_rows import row_of
from apprentice.tasks.rollouts.rewards import EnvironmentReward
from apprentice.tasks.rollouts.rollout_modes import ROLLOUT_MODES
from apprentice.tasks.serving.vllm_server import check_server
from apprentice.tasks.settings.grpo_settings import GrpoSpec
from tests.tasks.rollouts.test_rollout_modes import Hinting, says
from tests.tasks.test_one_prompt import tiny_model
from tests.tokenizers import build_tokenizer
from tests.vllm_stand_in import CONFIG, StandIn

GROUP = 2
STEPS_TOGETHER = 4


def test_a_server_that_trl_can_use_is_taken():
    with StandIn() as server:
        check_server(server.url, timeout=10)
        check_server(server.url + "/", timeout=10)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"healthy": False}, r"No vLLM server answered at http://127.0.0.1:\d+ within 0.1 s \(it answers 503\)"),
        ({"models": ()}, "is not a vLLM server: it lists no model"),
        ({"config": None}, "does not show its configuration .*\n→ Start it with: VLLM_SERVER_DEV_MODE=1 vllm serve"),
        ({"config": {**CONFIG, "weight_transfer_config": None}}, "accepts no weights .--weight-transfer-config"),
        ({"config": {**CONFIG, "model_config": {"logprobs_mode": "raw_logprobs"}}}, "another policy .*raw_logprobs"),
    ],
)
def test_a_server_that_was_started_otherwise_is_refused_with_the_command_that_mends_it(settings: Any, words: str):
    with StandIn(**settings) as server, pytest.raises(Stop, match=words):
        check_server(server.url, timeout=0.1)


def test_no_server_and_no_address_are_told_apart():
    with StandIn() as server:
        gone = server.url
    with pytest.raises(Stop, match=r"No vLLM server answered at .* within 0.1 s \(ConnectError"):
        check_server(gone, timeout=0.1)
    with pytest.raises(Stop, match="is not a valid URL"):
        check_server("http://here:port", timeout=0.1)


def test_an_environment_server_is_no_vllm_server(server):
    """Both say that they are healthy."""
    with pytest.raises(Stop, match="is not a vLLM server"):
        check_server(server.url, timeout=10)


@pytest.fixture
def by_server(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any, str], None]:
    """Has a trainer generate by TRL's own code for server mode, but for the weights, which need NCCL and so a GPU."""
    from trl.generation import vllm_client, vllm_generation

    monkeypatch.setattr(vllm_client, "is_vllm_available", lambda **_: True)  # the client alone needs nothing of vLLM

    class WithoutWeights(vllm_generation.VLLMGeneration):
        def _init_vllm(self) -> None:
            self.vllm_client = vllm_client.VLLMClient(self.server_base_url, connection_timeout=5)

        def sync_weights(self) -> None:
            """Those of the stand-in are in its code."""

    def turn(trainer: Any, url: str) -> None:
        trainer.vllm_generation = WithoutWeights(
            trainer.model,
            trainer.accelerator,
            trainer.processing_class,
            mode="server",
            server_base_url=url,
            max_completion_length=trainer.max_completion_length,
        )
        trainer.use_vllm, trainer.vllm_mode, trainer._last_loaded_step = True, "server", -1

    return turn


@pytest.mark.parametrize("way", ROLLOUT_MODES)
@pytest.mark.parametrize("turns", ["one", "several"])
def test_the_shared_question_of_a_group_makes_server_mode_safe(way, turns, by_server, chain_sum, server, tmp_path):
    """TRL asks for `all_prompts[::num_generations]`, n completions each, and deals them out in order (law 4).

    The batch is one of TRL's own sampler, over the steps for which it generates at once.
    """
    from datasets import Dataset
    from trl.trainer.grpo_config import GRPOConfig

    task = chain_sum if turns == "one" else Hinting(**chain_sum.model_dump())
    rollouts_needed = 2 * STEPS_TOGETHER
    with EnvironmentPool(task, server, size=rollouts_needed) as pool, LiveRollouts(pool) as rollouts:
        pool.open_all()
        questions = {seed: pool.players[0].ask(seed) for seed in range(3, 11)}
        tokenizer = build_tokenizer(task, list(questions.values()))

        def say(ids: list[int]) -> list[int]:
            return [*tokenizer.encode(says(tokenizer.decode(ids))), tokenizer.eos_token_id]

        instance = task.make()
        trainer_class, given = ROLLOUT_MODES[way](instance, rollouts)
        trainer = trainer_class(
            model=tiny_model(tokenizer),
            processing_class=tokenizer,
            train_dataset=Dataset.from_list([row_of(way, instance, *named) for named in questions.items()]),
            reward_funcs=EnvironmentReward(GrpoSpec(), TrainedQuestions(tmp_path / "asked.jsonl"), rollouts),
            args=GRPOConfig(
                str(tmp_path),
                report_to="none",
                use_cpu=True,
                bf16=False,
                per_device_train_batch_size=2,
                gradient_accumulation_steps=STEPS_TOGETHER,
                num_generations=GROUP,
                max_completion_length=256,
                chat_template_kwargs=TEMPLATE_ARGUMENTS,
            ),
            **given,
        )
        batch = next(iter(trainer.get_train_dataloader()))
        with StandIn(say) as vllm:
            by_server(trainer, vllm.url)
            out: Any = trainer._generate_and_score_completions(batch)
        rewards = [environment.reward for environment in rollouts.players]

    texts = [row.get("question") or row["prompt"][-1]["question"] for row in batch]
    assert len(batch) == rollouts_needed
    assert texts[::GROUP] == texts[1::GROUP], "a group has one question"
    first, later = vllm.requests[0], vllm.requests[1:]
    assert (len(first["prompt"]), first["n"]) == (rollouts_needed // GROUP, GROUP)
    assert all(request["n"] == 1 for request in later), "after the first turn each rollout has a context of its own"
    assert bool(later) == (turns == "several")
    for n, question in enumerate(texts):
        prompt = out["prompt_ids"][n][out["prompt_mask"][n].bool()].tolist()
        assert prompt == first["prompt"][n // GROUP]
        assert question in tokenizer.decode(prompt)
        completion = out["completion_ids"][n][out["completion_mask"][n].bool()].tolist()
        turn = say(prompt)
        assert completion[: len(turn)] == turn, "the completion is that of the row's own prompt"
    assert 1.0 in rewards
