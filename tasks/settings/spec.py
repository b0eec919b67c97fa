"""The settings of the stages and the seed windows.

In: a recipe's section. Out: a frozen, strict, validated model (spec_base.py says which of its fields enter a key).
"""

import itertools
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from apprentice.envs.paths import FileOrName
from apprentice.tasks.settings.spec_base import A_NUMBER as A_NUMBER
from apprentice.tasks.settings.spec_base import OPERATIONAL, WHEN_GIVEN, Spec

BUDGETS = (0.0, 0.25, 0.5)
"""Parts of a thought's budget at which a model is evaluated besides the whole."""
VOTE = "vote"
"""The name of the evaluation in several samples, beside those of the budgets."""
SWAPPED, SWAPPED_QUESTIONS = "swapped", 50
"""The name of the evaluation with other questions' thoughts, and on how many."""

Column = Literal["messages", "prompt", "completion", "tools", "reward", "seed"]
"""What may be read from a column of another name."""


class Window(Spec):
    """The seeds from start to start + size - 1, one question each."""

    start: int = Field(ge=0)
    """The first seed."""
    size: int = Field(ge=1)
    """Number of seeds."""

    def __str__(self) -> str:
        return f"{self.start} to {self.start + self.size - 1}"

    def seeds(self) -> range:
        return range(self.start, self.start + self.size)

    def split(self, parts: int) -> "list[Window]":
        """Splits the window into `parts` consecutive windows, or `size` if that is less; sizes differ by at most 1."""
        parts = min(parts, self.size)
        edges = [self.start + self.size * part // parts for part in range(parts + 1)]
        return [Window(start=start, size=end - start) for start, end in itertools.pairwise(edges)]


class Seeds(Spec):
    """Chosen seeds of a window, for a round that does not ask all of them."""

    chosen: tuple[Annotated[int, Field(ge=0)], ...] = Field(min_length=1)

    def __str__(self) -> str:
        return f"{len(self.chosen)} of {self.chosen[0]} to {self.chosen[-1]}"

    @property
    def size(self) -> int:
        return len(self.chosen)

    def seeds(self) -> tuple[int, ...]:
        return self.chosen

    def split(self, parts: int) -> "list[Seeds]":
        """Splits the seeds into `parts` runs, or `size` if that is less; sizes differ by at most 1."""
        whole = Window(start=0, size=self.size).split(parts)
        return [Seeds(chosen=self.chosen[part.start : part.start + part.size]) for part in whole]


class Shares(Spec):
    """How many of the training questions of each kind are asked, by one trait of the environment's questions."""

    trait: str
    """Such as word_len."""
    of: dict[str, Annotated[float, Field(ge=0.0, le=1.0)]]
    """Share of the questions that are used, by slice. Other slices are used in full."""


class Purpose(StrEnum):
    """What the questions of a window are for."""

    COLLECT = "collect"
    TRAIN = "grpo"
    EVALUATE = "evaluate"


TRAINED_ON = (Purpose.COLLECT, Purpose.TRAIN)
"""The windows that training takes its questions from."""


class SeedWindows(Spec):
    """One seed window for each `Purpose`. Windows cannot overlap: a question is its seed."""

    collect: Window
    grpo: Window
    evaluate: Window

    def of(self, purpose: Purpose) -> Window:
        return getattr(self, purpose)

    @model_validator(mode="after")
    def _are_disjoint(self) -> "SeedWindows":
        named = sorted(((window.start, window.size, name) for name, window in self), key=lambda each: each[0])
        for (start, size, first), (next_start, _, second) in itertools.pairwise(named):
            if start + size > next_start:
                raise ValueError(
                    f"the seed windows of {first} ({start} to {start + size - 1}) and {second} (from {next_start}) "
                    f"overlap; move {second} to {start + size} or beyond, or omit the starts"
                )
        return self


class BuiltStudent(Spec):
    """A small Qwen3 with a byte-level tokenizer, built from the seed; nothing is downloaded."""

    hidden_size: int = Field(default=128, ge=2)
    """Width. Twice the width is about four times the compute."""
    intermediate_size: int = Field(default=384, ge=1)
    """Width of the feed-forward layers."""
    layers: int = Field(default=4, ge=1)
    """Number of layers. Compute grows linearly with it."""
    heads: int = Field(default=4, ge=1)
    """Attention heads; hidden_size ÷ heads must be even."""
    max_positions: int = Field(default=512, ge=1)
    """Longest sequence in tokens."""
    pretraining_steps: int = Field(default=0, ge=0, json_schema_extra=WHEN_GIVEN)
    """Steps of pretraining on random strings, each followed by itself or by its reverse: like a model from the Hub, the
    student then has a skill that SFT and GRPO bring out. 0: random weights."""
    initializer_range: float = Field(default=0.02, gt=0.0, json_schema_extra=WHEN_GIVEN)
    """Standard deviation of the random weights; a narrow model learns faster from larger ones, such as 0.05."""
    rope_theta: float = Field(default=10000.0, gt=1.0, json_schema_extra=WHEN_GIVEN)
    """Base of the rotary position encoding. In sequences of fewer than a hundred tokens, such as those of a small
    student, positions are easier to distinguish with about 30."""

    @model_validator(mode="after")
    def _heads_divide_it(self) -> "BuiltStudent":
        if self.hidden_size % (2 * self.heads):
            raise ValueError(
                f"heads ({self.heads}) must divide hidden_size ({self.hidden_size}) into parts of an even size"
            )
        return self


INSTRUCTION = "Work the answer out in short written steps first, then call the tool."


class ThinkingSpec(Spec):
    """A student that writes a thought before each call. `thinking: text` is short for `thinking: {mode: text}`. The
    choice is part of the student's chat template: SFT, GRPO, evaluation and every server of the published model ask for
    thoughts in the same way. The thoughts of earlier turns stay in the context."""

    mode: Literal["text", "native"]
    """`text`: the thought is plain text before the call, for a template that keeps text beside a call. `native`: the
    template's own block, such as Qwen3's `<think>`, for a template that has one."""
    max_tokens: int = Field(default=128, ge=1)
    """Maximum tokens of a thought. They come on top of `evaluate.max_new_tokens`, and of `grpo.max_completion_length`
    once for each turn. A longer thought, or one without an end, counts as no call."""
    instruction: str = Field(default=INSTRUCTION)
    """What is added to the environment's instructions, for the teacher and for the student. Empty: nothing."""


class StudentSpec(Spec):
    """The model to train: from the Hub, from a folder, built from scratch, or one that this project has trained."""

    model: FileOrName | None = None
    """A model repository on the Hub, such as Qwen/Qwen3-1.7B, or a local folder."""
    revision: str | None = None
    """Commit, tag or branch of a Hub model; required for one. It is resolved to a commit, which enters the key."""
    content: str | None = Field(default=None, pattern=r"^[0-9a-f]{40}$")
    """Digest of the model files in a folder. Filled in automatically; a folder with other contents is rejected."""
    trust_remote_code: bool = False
    """Run the Python code that comes with the model. Only for a commit or folder whose code you have read."""
    safetensors_only: bool = True
    """Reject pickled weights, which can run code when loaded."""
    chat_template: str | None = Field(default=None, pattern=r"^[a-z0-9_]+$", json_schema_extra=WHEN_GIVEN)
    """One of TRL's chat templates in place of the model's own, which shows no tools, such as qwen2_5. The vocabulary
    must have its special tokens."""
    build: BuiltStudent | None = None
    champion: bool = Field(default=False, json_schema_extra=WHEN_GIVEN)
    """Continue from the champion of this recipe's name, as of the run's start."""
    checkpoint: str | None = Field(default=None, min_length=1, json_schema_extra=WHEN_GIVEN)
    """Continue from a model that this recipe's name has trained: a key, a revision or a tag from a report's lineage, or
    at least its first 6 characters."""
    thinking: ThinkingSpec | None = Field(default=None, json_schema_extra=WHEN_GIVEN)
    """`text` or `native`: the student writes a thought before each call. Default: `off`, it answers at once."""

    @field_validator("thinking", mode="before")
    @classmethod
    def _thinking_may_be_one_word(cls, given: Any) -> Any:
        if given is False or given == "off":
            return None
        return {"mode": given} if isinstance(given, str) else given

    @property
    def goes_on(self) -> bool:
        """Whether training continues from an artifact of the store."""
        return self.champion or self.checkpoint is not None

    @model_validator(mode="after")
    def _is_one_of_four(self) -> "StudentSpec":
        model = self.model is not None or self.content is not None
        if [model, self.build is not None, self.champion, self.checkpoint is not None].count(True) != 1:
            raise ValueError(
                "name either `model` (a Hub repository or a folder) or `build` (a small model with random weights), or "
                "continue from a trained model: `champion: true` or `checkpoint`"
            )
        in_folder = self.content is not None or (self.model is not None and Path(self.model).is_dir())
        if self.model is not None and self.revision is None and not in_folder:
            raise ValueError(f"name the revision of {self.model}, preferably a commit (or an existing folder)")
        return self

    def in_key(self) -> dict[str, Any]:
        """A folder enters the key by its content, not by its path."""
        return super().in_key() | ({"model": None} if self.content else {})


class DatasetSpec(Spec):
    """Rollouts that exist: conversations as JSON lines, Parquet, JSON or logs of Inspect, in a file, in a folder or in
    a dataset of the Hub. The environment plays their calls again and gives the reward."""

    path: FileOrName = Field(min_length=1)
    """A file, a folder, or a dataset of the Hub, such as owner/laptop-rollouts."""
    columns: dict[Column, str] = Field(default={}, json_schema_extra=WHEN_GIVEN)
    """The rows' own names of columns, with dots for nested fields, such as {reward: info.score}."""
    seeds: Window | None = Field(default=None, json_schema_extra=WHEN_GIVEN)
    """Seeds whose questions the rows may answer, besides the recipe's windows, such as {start: 0, size: 500}."""
    revision: str | None = Field(default=None, pattern=r"^[0-9a-f]{40}$")
    """Commit of a dataset of the Hub; required for one."""
    split: str = Field(default="train", min_length=1, json_schema_extra=WHEN_GIVEN)
    """The split that is read, where the dataset has splits as the package datasets finds them; `all`: every one."""
    config: str | None = Field(default=None, min_length=1, json_schema_extra=WHEN_GIVEN)
    """The configuration of a dataset whose README names several. Default: the one that the README marks as such."""
    thoughts: bool = Field(default=False, json_schema_extra=WHEN_GIVEN)
    """Keep the rows' thoughts: `reasoning_content`, thinking blocks, or the text beside a call. Always filled in:
    whether the student thinks."""
    content: str | None = Field(default=None, pattern=r"^[0-9a-f]{64}$")
    """Digest of the rows. Filled in automatically; other rows are rejected."""

    def in_key(self) -> dict[str, Any]:
        """Rows are named by their content, wherever they lie."""
        whole = super().in_key()
        without = {"path", "revision", "split", "config"} if self.content else set()
        return {name: value for name, value in whole.items() if name not in without}


class CollectSpec(Spec):
    """How the rollouts that SFT learns from are collected."""

    section: ClassVar[str] = "collect"

    asks: int = Field(default=3, ge=1)
    """Attempts at one turn; the episode fails when all of them are malformed."""
    max_failed: float = Field(default=0.05, ge=0.0, le=1.0)
    """Share of episodes that may be lost to infrastructure, and share on which the environment may fail. Above it the
    stage stops and can be resumed."""
    max_refused: float = Field(default=0.5, ge=0.0, le=1.0, json_schema_extra=OPERATIONAL)
    """Share of episodes in which the teacher may give no valid call, or its endpoint may refuse the question. Above it
    the collection stops before anything is trained."""
    raw: bool = Field(default=False, json_schema_extra=WHEN_GIVEN)
    """Keep the endpoint's own messages in each row, with its reasoning and signatures; SFT does not read them."""
    shards: int = Field(default=1, ge=1, json_schema_extra=OPERATIONAL)
    """Seed ranges to collect as separate tasks on the flow's task runner; the dataset is the same."""
    dataset: DatasetSpec | None = Field(default=None, json_schema_extra=WHEN_GIVEN)
    """Take rollouts that exist in place of a collection: a file, a folder, or owner/name@COMMIT on the Hub. The
    environment plays their calls again: its prompt, replies and reward count, not the rows'. Of several rounds only
    round 0 learns from them."""
    unverified: Literal["drop", "keep", "relabel"] = Field(default="drop", json_schema_extra=WHEN_GIVEN)
    """What becomes of rows of `dataset` whose question is not found under any seed, so that no reward can be verified.
    `keep` takes them at their word, or at that of a person (`apprentice import --waiting`); rows without a reward then
    count as right. `relabel`: the teacher answers these questions, and two equal answers count as right."""
    students: int = Field(default=0, ge=0, le=64, json_schema_extra=WHEN_GIVEN)
    """How often the student itself plays each question, sampled as in GRPO. Its correct attempts are kept beside
    the teacher's rollouts, or in place of a teacher. The teacher does not play questions without a wrong attempt."""
    keep: int = Field(default=1, ge=1, json_schema_extra=WHEN_GIVEN)
    """Most kept attempts of one question: the shortest correct ones, none that nearly repeats another."""
    teacher_questions: int | None = Field(default=None, ge=1, json_schema_extra=WHEN_GIVEN)
    """Most questions that the teacher plays: those that the student answers correctly least often. All by default."""

    @field_validator("dataset", mode="before")
    @classmethod
    def _may_be_one_text(cls, given: Any) -> Any:
        if not isinstance(given, str):
            return given
        path, at, revision = given.rpartition("@")
        return {"path": path, "revision": revision} if at else {"path": revision}

    @property
    def relabels(self) -> bool:
        """Whether the teacher answers the questions of rows that could not be verified."""
        return self.unverified == "relabel"

    def teaching(self, thinking: ThinkingSpec | None) -> "CollectSpec":
        """The settings for a student that thinks so, or answers at once."""
        if self.dataset is None:
            return self
        return self.model_copy(update={"dataset": self.dataset.model_copy(update={"thoughts": thinking is not None})})

    def by_teacher(self) -> "CollectSpec":
        """The settings that the teacher's rollouts depend on."""
        own = {"dataset": None, "unverified": "drop", "students": 0, "keep": 1, "teacher_questions": None}
        return self.model_copy(update=own)


class MixSpec(Spec):
    """How rollouts of several players are mixed."""

    keep: int = Field(default=1, ge=1)
    """Most tries of one question."""
    replay: float = Field(default=0.0, ge=0.0, le=0.9)
    """Share of the rows that earlier rounds kept."""


class LengthsSpec(Spec):
    """How max_length is derived from the token lengths."""

    margin: int = Field(default=16, ge=0)
    """Tokens added to the 99th percentile."""
    multiple_of: int = Field(default=8, ge=1)
    """max_length is rounded up to a multiple of this."""


class EvaluateSpec(Spec):
    """How a model is evaluated."""

    section: ClassVar[str] = "evaluate"

    questions: int = Field(default=400, ge=1)
    """Distinct held-out questions. At 50% accuracy, 400 resolve a difference of about 7 points, 1,000 of about 4."""
    base_questions: int | None = Field(default=None, ge=1, json_schema_extra=OPERATIONAL)
    """How many of them, the first ones, the untrained student answers; it is compared on these. Default: all."""
    decoding: Literal["greedy", "sampled"] = "greedy"
    """`sampled`: sample at `temperature`; `greedy`: take the most likely token."""
    temperature: float = Field(default=1.0, gt=0.0)
    """Temperature of sampled decoding."""
    max_new_tokens: int = Field(default=64, ge=1)
    """Maximum tokens of a turn."""
    batch_size: int = Field(default=64, ge=1, json_schema_extra=OPERATIONAL)
    """Episodes generated together, each with its own session."""
    max_failed: float = Field(default=0.05, ge=0.0, le=1.0, json_schema_extra=OPERATIONAL)
    """Share of episodes on which the environment may fail, after a retry each. Above it the stage stops; it resumes."""
    bf16: bool = Field(default=False, json_schema_extra=WHEN_GIVEN)
    """Generate with weights and cache in bf16; the checkpoint keeps fp32. `precision` sets it with the trainings'."""
    samples: int = Field(default=1, ge=1)
    """Completions per question; more than one needs `sampled` and gives pass@k."""
    protocol: Literal["parity", "tutorial"] = "parity"
    """`parity`: prompt and parser of training. `tutorial`: the evaluation as the public SFT tutorial prints it, only
    for comparison with its figures."""
    thought_budget: float | None = Field(default=None, ge=0.0, le=1.0, json_schema_extra=WHEN_GIVEN)
    """Share of `student.thinking.max_tokens` after which a thought is ended and the call is begun for the model. 0: no
    thought. Default: the model ends its thoughts itself."""
    swapped_thoughts: bool = Field(default=False, json_schema_extra=WHEN_GIVEN)
    """Give each answer another question's thought, that of the next in its batch: who reads it answers otherwise."""
    thinking: bool = Field(default=False, json_schema_extra=OPERATIONAL)
    """Also evaluate the last model with 0, 25 and 50% of its budget of thought, and on 50 questions with another's
    thought. The report shows accuracy and tokens at each, the difference to no thought, and how many answers stay."""
    vote: int = Field(default=1, ge=1, le=64, json_schema_extra=OPERATIONAL)
    """Also sample so many answers of the last model to each question; report their majority and its tokens. 1: off."""

    def sampled_where_repeated(self, questions: int | None) -> "EvaluateSpec":
        """Return how a model is evaluated where there are so many questions: it samples if it is asked one repeatedly.

        Args:
            questions: None where every seed may have its own.
        """
        if questions is None or questions >= self.questions:
            return self
        return self.model_copy(update={"decoding": "sampled"})

    def of_untrained(self) -> "EvaluateSpec":
        """Return how the untrained student is evaluated."""
        return self.model_copy(update={"questions": min(self.base_questions or self.questions, self.questions)})

    def of_thoughts(self, thinks: bool) -> dict[str, "EvaluateSpec"]:
        """Return how the last model is evaluated besides, by share of its budget and by name."""
        found: dict[str, EvaluateSpec] = {}
        if thinks and self.thinking:
            few = {"questions": min(SWAPPED_QUESTIONS, self.questions), "samples": 1}
            found = {f"{share:g}": self.model_copy(update={"thought_budget": share}) for share in BUDGETS}
            found[SWAPPED] = self.model_copy(update={"swapped_thoughts": True} | few)
        if self.vote > 1:
            found[VOTE] = self.model_copy(update={"samples": self.vote, "decoding": "sampled"})
        return found

    @model_validator(mode="after")
    def _samples_differ(self) -> "EvaluateSpec":
        if self.samples > 1 and self.decoding == "greedy":
            raise ValueError(f"samples: {self.samples} are all equal with greedy decoding; set decoding: sampled")
        return self


class ProbeSpec(Spec):
    """Measures, before GRPO, whether the task leaves the SFT model something to learn."""

    questions: int = Field(default=48, ge=0)
    """Number of GRPO training questions to play, one sample each with GRPO's sampling; 0 disables the probe. 48
    estimate the rate within 14 points."""
    on_hopeless: Literal["stop", "go_on"] = "stop"
    """Where the model has all of these right, or none, it answers each as often as a group of GRPO has completions. If
    then no group differs, GRPO would learn nothing: `stop` ends the run with the SFT model, `go_on` trains all the
    same."""


Form = Literal["f16", "q8_0", "q6_k", "q5_k_m", "q4_k_m", "q4_0"]
"""A quantization of llama.cpp."""


class ExportSpec(Spec):
    """How `apprentice export --format gguf` writes and measures a model; a run does not read it."""

    section: ClassVar[str] = "export"

    quantize: list[Form] = Field(default=["f16", "q8_0", "q4_k_m"], min_length=1)
    """The forms to write, each a file of its own."""
    margin: float = Field(default=0.02, ge=0.0, lt=1.0)
    """How much accuracy a file may lose against the checkpoint, as a share. One that loses more is marked as worse."""
    prompts: int = Field(default=100, ge=1)
    """Prompts with tools whose token ids are compared with those of training."""

    def of(self, thinking: ThinkingSpec | None) -> "ExportSpec":
        """Return the settings for a model that thinks so, or answers at once."""
        return self if thinking is None else ExportOfThinking(**self.model_dump(), thinking=thinking)

    @field_validator("quantize")
    @classmethod
    def _names_each_once(cls, forms: list[Form]) -> list[Form]:
        if len(set(forms)) < len(forms):
            raise ValueError("a form is named twice")
        return forms


class ExportOfThinking(ExportSpec):
    """The export of a model that thinks. Its key has the thoughts, unlike the exports that were measured without."""

    thinking: ThinkingSpec
