"""What sampling in a tree saves on a trained model: SmolLM2 after its recipe's SFT, 64 rollouts of 8 questions.

In: nothing; a store in build/bench/tree, where the SFT is kept, so that only the first call trains it (some minutes).
Out: a table, then one line of JSON. Generation alone, in bf16, on the same questions by turns: as transformers does it,
with what all prompts begin with computed once, in the tree, and with drafts of a call's frame in addition. `passes` is
of a batch, `computed` how many tokens the model computes, prompts included, for each that a completion has. Then steps
of the recipe's GRPO of one batch each (`oversample: 1.0`), and the peak of memory while 512 rollouts of 64 questions
are sampled at once. `--seed 7` is another training. `make bench NAME=real` has plain TRL's step on the same rows.
"""

import argparse
import json
import statistics
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from tests.bench.real import CASES, made_by

HOME = Path(__file__).parents[2] / "build" / "bench" / "tree"
GROUP, QUESTIONS, BATCHES, MANY = 8, 8, 6, 64
TOKENS, STEPS = 40, (2, 10)
WAYS = ("transformers", "prefix", "tree", "drafts")


class Sampler:
    """Generates batches of a checkpoint; counts passes of the whole model, and their tokens."""

    def __init__(self, folder: Path, tools: list[dict[str, Any]]):
        from transformers import GenerationConfig

        from apprentice.tasks.episodes.example import drafts_of
        from apprentice.tasks.episodes.rendering import chat_format
        from apprentice.tasks.models.checkpoints import load_model
        from apprentice.tasks.models.memory import round_weights
        from apprentice.tasks.models.tokenizer import load_tokenizer

        self.tokenizer, self.model = load_tokenizer(folder), load_model(folder).eval()
        round_weights(self.model)
        self.draft = drafts_of(self.tokenizer, tools).after
        self.computed = self.passes = 0
        self.model.register_forward_pre_hook(self._count, with_kwargs=True)
        self.settings = GenerationConfig(
            max_new_tokens=TOKENS,
            do_sample=True,
            top_k=0,
            eos_token_id=list(chat_format(self.tokenizer).ends),
            pad_token_id=self.tokenizer.pad_token_id,
            disable_compile=True,
        )

    def _count(self, _: Any, __: Any, named: dict[str, Any]) -> None:
        self.passes += 1
        self.computed += named["input_ids"].numel()

    def completions(self, prompts: list[list[int]], way: str) -> list[list[int]]:
        """Token ids, without padding."""
        import torch

        from apprentice.tasks.models.decoding import by_one_number
        from apprentice.tasks.models.shared_prefix import SharedPrefix, rests
        from apprentice.tasks.training.shared_prompts import generate_shared

        cache = SharedPrefix(self.model, self.settings).cache(prompts, TOKENS) if way == "prefix" else None
        known = cache.get_seq_length() if cache else 0
        inputs = rests(self.tokenizer, prompts, known, self.model.device)
        inputs |= {"past_key_values": cache} if cache else {}
        draft = self.draft if way == "drafts" else None
        is_tree = way in ("tree", "drafts")
        sharing = generate_shared(self.model, prompts, by_one_number, draft) if is_tree else nullcontext()
        with torch.inference_mode(), sharing:
            out = self.model.generate(**inputs, generation_config=self.settings)
        new = out[:, inputs["input_ids"].shape[1] :].tolist()
        return [[token for token in row if token != self.tokenizer.pad_token_id] for row in new]


def trained(recipe: Any) -> Path:
    from apprentice import collect, sft

    return sft(recipe, collect(recipe)).folder


def prompts_of(sampler: Sampler, recipe: Any, home: Path) -> list[list[int]]:
    """Those of GRPO's first questions."""
    from apprentice.tasks.episodes.episode import prompt
    from apprentice.tasks.episodes.rendering import prompt_ids
    from apprentice.tasks.files.question_lists import used_questions

    environment = recipe.environment.make()
    rows = used_questions(made_by(home, "questions"), "grpo")
    asked = [prompt(environment, row["question"]) for row in rows[: QUESTIONS * max(BATCHES, MANY // QUESTIONS)]]
    return [prompt_ids(sampler.tokenizer, each, environment.schemas) for each in asked]


def generation(sampler: Sampler, prompts: list[list[int]]) -> dict[str, Any]:
    import torch

    seconds: dict[str, list[float]] = {way: [] for way in WAYS}
    computed, passes, written = (dict.fromkeys(WAYS, 0) for _ in range(3))
    for batch in range(BATCHES):
        of_batch = [each for each in prompts[batch * QUESTIONS : (batch + 1) * QUESTIONS] for _ in range(GROUP)]
        for way in WAYS:
            torch.manual_seed(batch)
            began = time.perf_counter()
            sampler.computed = sampler.passes = 0
            said = sampler.completions(of_batch, way)
            seconds[way].append(time.perf_counter() - began)
            computed[way] += sampler.computed
            passes[way] += sampler.passes
            written[way] += sum(map(len, said))
    medians = {way: statistics.median(each) for way, each in seconds.items()}
    return {
        way: {
            "seconds": round(medians[way], 2),
            "ratio": round(medians["transformers"] / medians[way], 2),
            "passes": round(passes[way] / BATCHES, 1),
            "computed": round(computed[way] / written[way], 2),
        }
        for way in WAYS
    }


def peak(sampler: Sampler, prompts: list[list[int]]) -> float:
    """GB that the process has at most while it samples, beyond what it has before."""
    Path("/proc/self/clear_refs").write_text("5")  # the peak so far is forgotten
    before = _memory("VmRSS")
    sampler.completions([each for each in prompts[:MANY] for _ in range(GROUP)], "drafts")
    return round((_memory("VmHWM") - before) / 1e6, 2)


def _memory(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def step(recipe: Any, model: Path, home: Path) -> float:
    """Seconds of a step of GRPO, of one batch: of the longer training's further steps, without start and end."""
    from apprentice import grpo

    took = []
    for steps in STEPS:
        settings = recipe.grpo.model_copy(update={"max_steps": steps})
        key = grpo(recipe.model_copy(update={"grpo": settings}), model).key
        (log,) = (home / "artifacts" / "logs").glob("*.jsonl")
        ended = [line for line in map(json.loads, log.open()) if line["message"] == "stage ended"]
        took.append(next(line["seconds"] for line in ended if (line["key"], line["state"]) == (key, "ran")))
    return round((took[1] - took[0]) / (STEPS[1] - STEPS[0]), 2)


def main() -> None:
    from apprentice import load_recipe

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=44)
    parser.add_argument("--home", type=Path, default=HOME)
    given = parser.parse_args()
    home = given.home / str(given.seed)
    case = CASES["smollm2"]
    sets = [*case.settings, f"seed={given.seed}", "guards=[]", "sft.control=false"]
    sets += [f"store.path={home / 'artifacts'}", "grpo.oversample=1.0"]
    recipe = load_recipe(case.recipe, sets)
    model = trained(recipe)
    sampler = Sampler(model, recipe.environment.make().schemas)
    prompts = prompts_of(sampler, recipe, home)
    row: dict[str, Any] = {"generation": generation(sampler, prompts), "peak_gb_512": peak(sampler, prompts)}
    del sampler
    print(
        "| 64 rollouts | seconds | against transformers | passes | tokens computed of each written |\n|" + " --- |" * 5
    )
    for way, found in row["generation"].items():
        print(f"| {way} | {found['seconds']} | {found['ratio']}× | {found['passes']} | {found['computed']:.2f} |")
    row["step_s"] = step(recipe, model, home)
    print(f"A step of GRPO: {row['step_s']} s. 512 rollouts at once: {row['peak_gb_512']} GB more.", file=sys.stderr)
    print(json.dumps(row))


if __name__ == "__main__":
    main()
