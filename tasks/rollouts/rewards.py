"""The reward functions of GRPO: one for each reward stream of the environments, each with its own metric.

In: played rollouts, the environments' reward streams. Out: TRL's reward functions. A rollout that was lost to
infrastructure, or that belongs to another environment's stream, has the reward None, never 0.0.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from apprentice.envs.player import Player
from apprentice.envs.reward import is_right
from apprentice.envs.wire.metrics import count
from apprentice.envs.wire.session import SessionLost
from apprentice.tasks.files.question_lists import TrainedQuestions
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.rollouts.groups import GroupLog
from apprentice.tasks.rollouts.live_rollouts import LiveRollouts
from apprentice.tasks.rollouts.streams import Stream


class _StepSummary(NamedTuple):
    """The rollouts of one process in a step."""

    questions: list[tuple[int, str]]
    """Seeds and questions that were trained on; empty in an evaluation."""
    played: int
    lost: int
    broke: int
    """Lost rollouts on which the environment itself failed, and again on a new connection."""
    why: str
    gave_up: str


OWN_REWARD = "own_reward"
"""The metric of the environments' mean reward, for diagnosing curves where TRL's reward is a weighted sum."""
UNFINISHED = "unfinished"
"""The metric of the share of rollouts that ended without the environment: no call, no turn or no token was left."""


class RewardSettings(Protocol):
    """What of an online training's section is about rewards, such as GRPO's."""

    @property
    def reward(self) -> str: ...
    @property
    def max_failed(self) -> float: ...


class EnvironmentReward:
    """The reward function of the first stream; `others` gives those of the other streams.

    Counts lost rollouts. Raises Stop when they exceed `max_failed` of all rollouts so far, counted as at least 100, so
    that one early loss does not stop a training. Raises SessionLost when the server is unavailable for good; the step
    is repeated after the training resumes.

    Args:
        asked: Records the questions that are trained on.
        groups: Keeps the groups with a right and a wrong rollout, if a later training needs them.
        further: Further metrics of the rollouts.
        is_shaped: Whether TRL adds other rewards than the streams'.
    """

    def __init__(
        self,
        spec: RewardSettings,
        trained_questions: TrainedQuestions,
        rollouts: LiveRollouts,
        streams: Sequence[Stream] = (Stream(),),
        groups: GroupLog | None = None,
        further: Callable[[], dict[str, float]] = dict,
        is_shaped: bool = False,
    ):
        self._first, *self._rest = streams
        self.__name__ = self._first.called
        self._spec = spec
        self._trained_questions = trained_questions
        self._rollouts = rollouts
        self._groups = groups
        self._further = further
        self._is_shaped = is_shaped
        self.played = 0
        self.lost = 0
        self.broke = 0

    def __call__(self, seed: Sequence[int], question: Sequence[str], **row: Any) -> list[float | None]:
        self._rollouts.wait()
        unfinished = self._rollouts.finish()
        environments = self._rollouts.players
        lost = [environment for environment in environments if environment.reward is None]
        trained_on = not any(row.get("held_out", ()))
        count("episodes", len(environments))
        why = next((environment.failure for environment in lost if environment.failure), "")
        questions = list(zip(seed, question, strict=True)) if trained_on else []
        broke = self._rollouts.broken()
        self._agree(_StepSummary(questions, len(environments), len(lost), broke, why, self._rollouts.gave_up or ""))
        if self._groups and trained_on:
            self._groups.note(row["trainer_state"].global_step, self._rollouts)
        if "log_metric" in row:
            for name, value in {UNFINISHED: unfinished / len(environments), **self._further()}.items():
                row["log_metric"](name, value)
            if own := self._own():
                row["log_metric"](OWN_REWARD, sum(own) / len(own))
        return self._read(self._first)

    def _own(self) -> list[float]:
        """The environments' own rewards; empty where TRL's sum of the weighted streams is the same."""
        if not self._rest and self._first.weight == 1.0 and not self._is_shaped:
            return []
        own = (self._shaped(Stream(each.label, next(iter(each.streams))), each) for each in self._rollouts.players)
        return [reward for reward in own if reward is not None]

    def others(self) -> "list[Callable[..., list[float | None]]]":
        """The reward functions of the other streams; TRL calls them after this one, when all episodes have ended."""
        return [self._function(stream) for stream in self._rest]

    def _function(self, stream: Stream) -> "Callable[..., list[float | None]]":
        def read(**_: Any) -> list[float | None]:
            return self._read(stream)

        read.__name__ = stream.called
        return read

    def _read(self, stream: Stream) -> list[float | None]:
        return [self._shaped(stream, environment) for environment in self._rollouts.players]

    def _agree(self, summary: "_StepSummary") -> None:
        """Gathers the summaries of all processes, so that all of them continue or raise the same error."""
        from accelerate.utils import gather_object

        everyone: list[_StepSummary] = gather_object([summary])
        if gave_up := next((each.gave_up for each in everyone if each.gave_up), None):
            raise SessionLost(gave_up)
        for each in everyone:
            self._trained_questions.note(each.questions)
            self.played += each.played
            self.lost += each.lost
            self.broke += each.broke
        if self.lost > self._spec.max_failed * max(self.played, 100):
            why = next((each.why for each in everyone if each.why), "an earlier one")
            remedy = "Check that its server runs"
            if self.broke > self.lost / 2:
                remedy = "Fix its server, exclude the questions that it cannot score, or raise grpo.max_failed"
            raise Stop(
                f"{self.lost} of {self.played} rollouts were lost to the environment, {self.broke} of them because it "
                f"failed on them twice; the last one to: {why}",
                f"{remedy}, then run again.",
            )

    def _shaped(self, stream: Stream, player: Player) -> float | None:
        reward = stream.of(player)
        if reward is None or self._spec.reward == "score" or stream.name != next(iter(player.streams)):
            return reward
        return float(is_right(reward))
