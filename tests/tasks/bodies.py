"""What the processes of test_processes.py and test_sharded.py run: bodies of stages that are found by their names."""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from apprentice.envs.catalog import EnvironmentSpec
from apprentice.envs.wire.metrics import count
from apprentice.envs.wire.server import SessionLost
from apprentice.tasks.artifacts.local import LocalStore
from apprentice.tasks.engine.processes import on_processes
from apprentice.tasks.engine.run import RunContext, StandingServers
from apprentice.tasks.engine.stage import StageContext
from apprentice.tasks.grpo import train_grpo
from apprentice.tasks.reporting import announce
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.rollouts.live_rollouts import LiveRollouts
from apprentice.tasks.rollouts.rollout_modes import ROLLOUT_MODES, by_factory
from apprentice.tasks.settings.training import TrainerSpec
from apprentice.tasks.sft import train_sft
from apprentice.tasks.training.complete_checkpoints import LIST
from tests.tasks.rollouts.test_rollout_modes import says

SPEC = TrainerSpec(batch_size=1, gradient_accumulation=1, learning_rate=1.0, scheduler="constant", processes=2)


def puppets(context: StageContext, *given: Any) -> dict[str, Any]:
    """GRPO's body with a model that says of each question one right thing and three others, wherever it stands."""

    def way(instance: Any, rollouts: Any) -> tuple[type, dict[str, Any]]:
        trainer_class, how = by_factory(instance, rollouts)

        class Puppet(trainer_class):
            def _generate_single_turn(self, prompt_ids: Any, *_: Any, **__: Any) -> Any:
                texts = [says(self._tokenizer.decode(ids)) for ids in prompt_ids]
                begin = self.accelerator.process_index * len(texts)
                texts = [text.replace('"}}', f'{n % 4 or ""}"}}}}') for n, text in enumerate(texts, begin)]
                return [[*self._tokenizer.encode(text), self._tokenizer.eos_token_id] for text in texts], None

        return Puppet, how

    ROLLOUT_MODES["environment_factory"] = way
    try:
        return train_grpo(context, *given)
    finally:
        ROLLOUT_MODES["environment_factory"] = by_factory


def second_says_less(context: StageContext, *given: Any) -> dict[str, Any]:
    """GRPO's body; the second process generates a third of the tokens at most, so it is ready before the first one."""
    from transformers import GenerationMixin

    def shorter(self: Any, *given: Any, generation_config: Any, **named: Any) -> Any:
        most = generation_config.max_new_tokens // (3 if rank() == 1 else 1)
        with replaced(generation_config, "max_new_tokens", most):
            return generate(self, *given, generation_config=generation_config, **named)

    generate: Any = getattr(GenerationMixin, "generate")  # noqa: B009 - pyright wants a model to bind it to
    with replaced(GenerationMixin, "generate", shorter):
        return train_grpo(context, *given)


def second_loses_its_server(context: StageContext, body: Callable[..., dict[str, Any]], *given: Any) -> dict[str, Any]:
    """GRPO, `body`; at the third step the environment's server is given up, in the second process only."""
    from transformers import Trainer

    from apprentice.tasks import grpo

    class Losing(LiveRollouts):
        starts = 0

        def begin(self, rows: Sequence[dict[str, Any]]) -> None:
            super().begin(rows)
            self.starts += 1

        @property
        def gave_up(self) -> str | None:
            return super().gave_up if rank() == 0 or self.starts < 3 else "the server is away"

    def slowly(self: Any, output_dir: str) -> None:
        time.sleep(3 if rank() == 0 else 0)  # what the first process writes is large
        save(self, output_dir)

    save = Trainer._save_optimizer_and_scheduler
    Trainer._save_optimizer_and_scheduler = slowly
    grpo.LiveRollouts = Losing
    return body(context, *given)


def one_after_another(
    context: StageContext,
    _environment: EnvironmentSpec,
    *trainings: tuple[Any, tuple[str, Path, Path], tuple[Any, ...]],
) -> dict[str, Any]:
    """Several trainings in the same processes, which take longer to start than to train."""
    each = (
        (body, StageContext(context.run, key, out, scratch), given) for body, (key, out, scratch), given in trainings
    )
    return {training.key: body(training, *given) for body, training, given in each}


@contextmanager
def replaced(owner: Any, name: str, by: Any) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, by)
    try:
        yield
    finally:
        setattr(owner, name, before)


def rank() -> int:
    return int(os.environ["RANK"])


def second_stops(context: StageContext) -> dict[str, Any]:
    """Once the first one has spoken, which then waits for it as in a collective."""
    spoken = context.scratch / "spoken"
    if rank() == 1:
        announce.warn("I am 1.")
        count("episodes", 2)
        while not spoken.exists():
            time.sleep(0.05)
        raise Stop("The second one is in trouble.", "Help it.") from SessionLost("away")
    with announce.progress("steps", 3) as advance:
        for _ in range(3):
            advance(1)
    announce.warn("I am 0.")
    spoken.touch()
    time.sleep(600)
    return {}


def second_is_killed(context: StageContext) -> dict[str, Any]:
    """While the first one waits for it, and then finds the connection broken."""
    from accelerate import PartialState
    from accelerate.utils import gather_object

    PartialState(cpu=True)
    for times in range(1000):
        gather_object([times])
        if rank() == 1 and times == 3:
            os.kill(os.getpid(), signal.SIGKILL)
    return {}


def second_is_killed_in_a_step(
    context: StageContext, body: Callable[..., dict[str, Any]], step: int, *given: Any
) -> dict[str, Any]:
    """A training whose second process is killed when so many steps are finished, within the next one."""
    from transformers import Trainer

    def killed(self: Any, *given: Any, **named: Any) -> Any:
        if rank() == 1 and self.state.global_step == step:
            os.kill(os.getpid(), signal.SIGKILL)
        return training_step(self, *given, **named)

    training_step = Trainer.training_step
    Trainer.training_step = killed
    return body(context, *given)


def second_writes_late(context: StageContext, *given: Any) -> dict[str, Any]:
    """SFT, in which the second process writes its part of a checkpoint long after the first one has written its own."""
    from transformers import Trainer

    def late(self: Any, output_dir: str) -> None:
        deadline = time.monotonic() + (2.0 if rank() == 1 else 0.0)
        while not (Path(output_dir) / LIST).exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        save(self, output_dir)

    save = Trainer._save_rng_state
    Trainer._save_rng_state = late
    return train_sft(context, *given)


def sleeping(context: StageContext) -> dict[str, Any]:
    (context.scratch / f"pid-{rank()}").write_text(str(os.getpid()))
    time.sleep(600)
    return {}


def together(context: StageContext) -> dict[str, Any]:
    from accelerate import PartialState
    from accelerate.utils import gather_object

    PartialState(cpu=True)
    return {"ranks": gather_object([rank()])}


if __name__ == "__main__":  # a stage's process, to be killed
    from tests.tasks import bodies

    folder = Path(sys.argv[1])
    work = RunContext(LocalStore(folder / "artifacts", "toy"), StandingServers({}, None))
    on_processes(SPEC, bodies.sleeping, StageContext(work, "0" * 20, folder / "out", folder / "scratch"))
