"""GRPO computes what prompts have in common once, and learns the same."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from apprentice.envs.catalog import EnvironmentSpec
from apprentice.tasks.episodes.drafts import Drafts
from apprentice.tasks.episodes.rendering import TEMPLATE_ARGUMENTS
from apprentice.tasks.models.decoding import as_transformers
from apprentice.tasks.settings.grpo_settings import GrpoSpec
from apprentice.tasks.settings.training import LoraSpec
from apprentice.tasks.training.shared_prompts import KeptPrefix, generate_shared, sharing_prompts
from tests.tokenizers import build_tokenizer

BEGINNING = "Count the letters of this text, and say how many there are: "
"""One token a letter, in every prompt."""
OF_GROUPS = ["one", "three and four, which is more than one word can say", "five and, well, some words besides these"]
"""What the questions say after that; the longest is shared in its groups, too."""
GROUP = 4


class Ran(NamedTuple):
    weights: dict[str, Any]
    log: list[dict[str, Any]]
    said: list[list[int]]
    """The token ids of every completion."""
    shapes: list[tuple[int, int]]
    """Rows and columns of every forward pass with a gradient."""

    @property
    def computed(self) -> int:
        """Tokens with a gradient, padding included."""
        return sum(rows * columns for rows, columns in self.shapes)


def letters(completions: list[Any], **_: Any) -> list[float]:
    return [len(set(each[0]["content"])) / 10 for each in completions]


@pytest.fixture
def trained(chain_sum: EnvironmentSpec, tmp_path: Path) -> Callable[..., Ran]:
    import torch
    from datasets import Dataset
    from transformers import Qwen3Config, Qwen3ForCausalLM, set_seed
    from trl.trainer.grpo_config import GRPOConfig
    from trl.trainer.grpo_trainer import GRPOTrainer

    tokenizer = build_tokenizer(chain_sum, ["1 + 1 =", "2 + 2 ="])

    def run(
        share: bool,
        *,
        questions: list[str] = OF_GROUPS,
        beginning: str = BEGINNING,
        config: dict[str, Any] | None = None,
        spec: dict[str, Any] | None = None,
        **args: Any,
    ) -> Ran:
        set_seed(0)
        model = Qwen3ForCausalLM(
            Qwen3Config(
                vocab_size=len(tokenizer),
                hidden_size=16,
                intermediate_size=16,
                num_hidden_layers=2,
                num_attention_heads=4,
                num_key_value_heads=2,
                head_dim=8,
                initializer_range=0.3,  # so that a token depends on those before it
                eos_token_id=tokenizer.eos_token_id,
                pad_token_id=tokenizer.pad_token_id,
                **(config or {}),
            )
        )
        if args.get("beta"):
            model.save_pretrained(tmp_path)
            model.config._name_or_path = str(tmp_path)  # TRL loads the reference from there
        shapes: list[tuple[int, int]] = []
        said: list[list[int]] = []

        def note(module: Any, given: Any, named: dict[str, Any]) -> None:
            if torch.is_grad_enabled():
                shapes.append(tuple(named["input_ids"].shape))

        class Noting(GRPOTrainer):
            def _generate(self, prompts: Any) -> Any:
                generated = super()._generate(prompts)
                said.extend(generated[1])
                return generated

        model.register_forward_pre_hook(note, with_kwargs=True)
        lora = (spec or {}).get("lora")
        sharing: Any = sharing_prompts(Noting, generates=True, fast=GrpoSpec(**(spec or {})).bf16) if share else Noting
        trainer = sharing(
            model=model,
            processing_class=tokenizer,
            train_dataset=Dataset.from_list(
                [
                    {"prompt": [{"role": "user", "content": f"{beginning}{each} {n}"}]}
                    for n, each in enumerate(questions * 6)
                ]
            ),
            reward_funcs=[letters],
            peft_config=_peft(lora) if lora else None,
            args=GRPOConfig(
                str(tmp_path),
                **{
                    "report_to": "none",
                    "use_cpu": True,
                    "bf16": False,
                    "activation_checkpointing": False,
                    "max_steps": 3,
                    "logging_steps": 1,
                    "save_strategy": "no",
                    "learning_rate": 1e-2,
                    "adam_epsilon": 1e-5,
                    "per_device_train_batch_size": 12,
                    "gradient_accumulation_steps": 1,
                    "num_generations": GROUP,
                    "max_completion_length": 8,
                    "chat_template_kwargs": TEMPLATE_ARGUMENTS,
                    "disable_tqdm": True,
                    **args,
                },
            ),
        )
        trainer.train()
        log = [entry for entry in trainer.state.log_history if "loss" in entry]
        return Ran({name: tensor.detach() for name, tensor in model.state_dict().items()}, log, said, shapes)

    return run


def _peft(lora: LoraSpec) -> Any:
    from peft import LoraConfig

    return LoraConfig(r=lora.rank, target_modules=["q_proj", "v_proj"], init_lora_weights=False)


def assert_same(plain: Ran, sharing: Ran) -> None:
    import torch

    assert plain.said == sharing.said
    assert len({str(ids) for ids in plain.said}) > len(plain.said) / 2, "a mix-up of rows would not show"
    for name, tolerance in (("reward", 1e-6), ("loss", 1e-5), ("entropy", 1e-4), ("kl", 1e-4)):
        both = [[entry.get(name, 0.0) for entry in ran.log] for ran in (plain, sharing)]
        assert both[0] == pytest.approx(both[1], abs=tolerance), name
    norms = [[entry["grad_norm"] for entry in ran.log] for ran in (plain, sharing)]
    assert norms[0] == pytest.approx(norms[1], rel=1e-3, abs=1e-6)
    assert max(norms[0]) > 1e-3, "nothing was learned: any two trainings would be alike"
    for name, tensor in plain.weights.items():
        torch.testing.assert_close(tensor, sharing.weights[name], rtol=1e-3, atol=1e-4)


def test_the_weights_are_those_of_a_training_that_computes_every_prompt_for_every_completion(trained):
    plain, sharing = trained(False), trained(True)
    assert_same(plain, sharing)
    columns = plain.shapes[0][1]
    assert sharing.shapes[0][0] == 1, "what all begin with"
    assert sharing.shapes[1][0] == len(OF_GROUPS), "what the groups have besides"
    assert sharing.shapes[2] == (12, 9), "the last token of a prompt, and the completion"
    assert sum(each[1] for each in sharing.shapes[:3]) == columns
    assert sharing.computed < plain.computed / 4


def test_short_questions_are_computed_with_their_groups_completions(trained):
    short = {"questions": ["one", "some", "three or four"]}
    plain, sharing = trained(False, **short), trained(True, **short)
    assert_same(plain, sharing)
    assert [rows for rows, _ in sharing.shapes] == [1, len(short["questions"])] * 3


@pytest.mark.parametrize(
    "args",
    [
        pytest.param({"beta": 0.1}, id="a reference model"),
        pytest.param({"num_iterations": 2}, id="log-probabilities of older weights"),
        pytest.param({"spec": {"lora": LoraSpec(rank=2)}, "learning_rate": 1e-3}, id="adapters"),
        pytest.param(
            {"per_device_train_batch_size": 6, "gradient_accumulation_steps": 2}, id="groups over two batches"
        ),
        pytest.param({"loss_type": "dr_grpo", "scale_rewards": "none"}, id="another loss"),
    ],
)
def test_other_trainings_learn_the_same_too(trained, args: dict[str, Any]):
    plain, sharing = trained(False, **args), trained(True, **args)
    assert_same(plain, sharing)
    assert sharing.computed < plain.computed / 3


@pytest.mark.parametrize(
    "given",
    [
        pytest.param({"beginning": "", "questions": ["a", "b", "c"]}, id="short prompts"),
        pytest.param({"config": {"attention_dropout": 0.1}}, id="dropout"),
        pytest.param(
            {"config": {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}}, id="sliding windows"
        ),
        pytest.param({"config": {"attn_implementation": "eager"}}, id="eager attention"),
        pytest.param({"activation_checkpointing": True}, id="activation checkpointing"),
        pytest.param({"neftune_noise_alpha": 5.0}, id="noise on the embeddings"),
    ],
)
def test_what_cannot_be_shared_is_computed_as_trl_does(trained, given: dict[str, Any]):
    plain, sharing = trained(False, **given), trained(True, **given)
    assert sharing.shapes == plain.shapes
    assert sharing.said == plain.said


@pytest.mark.parametrize(
    "args",
    [
        {"repetition_penalty": 1.5},  # of what the prompt says, too
        {"cache_implementation": "static"},
        {"generation_kwargs": {"prefill_chunk_size": 8}},
    ],
    ids=lambda args: next(iter(args)),
)
def test_a_generation_that_needs_whole_prompts_gets_them_and_the_loss_still_shares(trained, args: dict[str, Any]):
    plain, sharing = trained(False, **args), trained(True, **args)
    assert_same(plain, sharing)
    assert sharing.computed < plain.computed / 4


@pytest.mark.parametrize("family", ["llama", "diffllama", "doge"])
def test_attention_of_another_kind_generates_the_same(family: str):
    """DiffLlama attends twice with the same keys and other values; Doge's mask is of numbers."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    special = {"eos_token_id": 63, "pad_token_id": 0}
    config = AutoConfig.for_model(family, vocab_size=64, num_key_value_heads=2, head_dim=8, **sizes, **special)
    model = AutoModelForCausalLM.from_config(config).eval()
    for weight in model.parameters():
        if weight.ndim > 1:
            torch.nn.init.normal_(weight, std=0.25)
    beginning = torch.randint(2, 60, (40,)).tolist()
    prompts = [beginning + torch.randint(2, 60, (length,)).tolist() for length in (9, 3, 6)]
    longest = max(map(len, prompts))
    ids = torch.tensor([[0] * (longest - len(each)) + each for each in prompts])
    given: dict[str, Any] = {"input_ids": ids, "attention_mask": (ids > 0).long()}
    given["generation_config"] = GenerationConfig(max_new_tokens=7, do_sample=False, **special)
    plain = model.generate(**given).tolist()
    rows = [[ids[max(longest - 3, 0) :]] for ids in plain]
    for draft in (None, Drafts(rows).after, lambda _, most: [7] * min(most, 3)):
        with generate_shared(model, prompts, as_transformers, draft):
            assert model.generate(**given).tolist() == plain


def test_the_rounds_of_a_step_compute_what_their_prompts_begin_with_once():
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = AutoConfig.for_model(
        "llama", vocab_size=64, num_key_value_heads=2, eos_token_id=63, pad_token_id=0, **sizes
    )
    model = AutoModelForCausalLM.from_config(config).eval()
    beginning, computed = torch.randint(2, 60, (40,)).tolist(), list[int]()
    model.base_model.register_forward_pre_hook(
        lambda _, __, named: computed.append(named["input_ids"].numel()), with_kwargs=True
    )
    settings, kept = GenerationConfig(max_new_tokens=1, do_sample=False, eos_token_id=63, pad_token_id=0), KeptPrefix()

    def round_of(step: int, *rests: int) -> int:
        prompts = [[*beginning, *range(3, 3 + rest)] for rest in rests]
        width, before = max(map(len, prompts)), sum(computed)
        ids = torch.tensor([[0] * (width - len(each)) + each for each in prompts])
        with generate_shared(model, prompts, as_transformers, None, kept, step):
            model.generate(input_ids=ids, attention_mask=(ids > 0).long(), generation_config=settings)
        return sum(computed) - before

    alone, further = round_of(1, 2, 3), round_of(1, 2, 3)
    assert alone - further == 41, "the 40 and one more: the last token of the shorter prompt names the first new one"
    assert round_of(2, 2, 3) == alone, "other weights, other keys"
