"""The three models on the held-out questions, and two of them in the regression evaluations; prints the table."""

from apprentice.envs.catalog import EnvironmentSpec
from apprentice.envs.pool import EnvironmentPool
from apprentice.tasks.episodes.record import EvaluatedEpisode
from apprentice.tasks.evaluate import rates
from apprentice.tasks.players.local_model import LocalModel
from apprentice.tasks.players.play import play_batched, plays_of
from apprentice.tasks.players.protocols import PROTOCOLS
from apprentice.tasks.settings.spec import EvaluateSpec
from tests.bench.scripts.given import Given


def main(given: Given) -> None:
    recipe, protocol = given.recipe, PROTOCOLS["parity"]
    exams: list[tuple[str, EnvironmentSpec, EvaluateSpec, tuple[str, ...]]] = [
        ("evaluate", recipe.environment, recipe.evaluate, ("base", "sft", "grpo"))
    ]
    for regression in recipe.guards:
        tokens = regression.max_new_tokens or recipe.evaluate.max_new_tokens
        spec = recipe.evaluate.model_copy(update={"max_new_tokens": tokens})
        exams.append((regression.name, regression.environment, spec, ("base", "grpo")))
    for name, environment, spec, models in exams:
        plays = plays_of(given.read(f"{name}.jsonl"), spec.samples)
        for model in models:
            played: list[EvaluatedEpisode] = []
            with EnvironmentPool(environment, given.server, min(spec.batch_size, len(plays))) as pool:
                opened = pool.open_ahead()
                speaker = LocalModel(given.folder / model, spec, protocol, recipe.seed)
                opened.result()
                play_batched(pool, plays, speaker, protocol, played.append)
            print(name, model, rates(played, protocol), flush=True)
