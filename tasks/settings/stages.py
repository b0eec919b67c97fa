"""One frozen settings model a stage, and what names the questions. Everything here enters the stage's key.

In: a recipe's sections. Out: checked settings; a field's docstring says what it means and what its value costs.
"""

import itertools
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from apprentice.envs.wire.address import without_secrets
from apprentice.tasks.settings.spec import OPERATIONAL, Spec
from apprentice.tasks.settings.who_played import who_played


class Window(Spec):
    """The seeds start, start + 1, … start + size - 1: one question each."""

    start: int = Field(ge=0)
    size: int = Field(ge=1)

    def __str__(self) -> str:
        return f"{self.start} to {self.start + self.size - 1}"

    def seeds(self) -> range:
        return range(self.start, self.start + self.size)

    def split(self, parts: int) -> "list[Window]":
        """`parts` windows, or fewer for fewer seeds, one after another, that make this one; sizes differ by one."""
        parts = min(parts, self.size)
        edges = [self.start + self.size * part // parts for part in range(parts + 1)]
        return [Window(start=start, size=end - start) for start, end in itertools.pairwise(edges)]


class SeedWindows(Spec):
    """A window a purpose. They cannot overlap: a question is its seed."""

    collect: Window
    grpo: Window
    evaluate: Window

    @model_validator(mode="after")
    def _are_disjoint(self) -> "SeedWindows":
        named = sorted(((window.start, window.size, name) for name, window in self), key=lambda each: each[0])
        for (start, size, first), (next_start, _, second) in itertools.pairwise(named):
            if start + size > next_start:
                raise ValueError(
                    f"the seed windows of {first} ({start} to {start + size - 1}) and {second} (from {next_start}) "
                    f"overlap; move {second} to {start + size} or beyond, or leave the starts out"
                )
        return self


class BuiltStudent(Spec):
    """A Qwen3 made and seeded on the spot, with a byte-level tokenizer: nothing is downloaded."""

    hidden_size: int = Field(default=128, ge=2)
    """Width. Twice the width is about four times the work."""
    intermediate_size: int = Field(default=384, ge=1)
    """Width of the feed-forward layers."""
    layers: int = Field(default=4, ge=1)
    """Depth: the work grows with it."""
    heads: int = Field(default=4, ge=1)
    """Attention heads; they divide hidden_size into even parts."""
    max_positions: int = Field(default=512, ge=1)
    """Longest sequence in tokens."""

    @model_validator(mode="after")
    def _heads_divide_it(self) -> "BuiltStudent":
        if self.hidden_size % (2 * self.heads):
            raise ValueError(
                f"heads ({self.heads}) must divide hidden_size ({self.hidden_size}) into parts of an even size"
            )
        return self


class StudentSpec(Spec):
    """Who learns: a model of the Hub, one in a folder, or one built on the spot."""

    model: str | None = None
    """A model's repository on the Hub, such as Qwen/Qwen3-1.7B, or a folder."""
    revision: str | None = None
    """The commit, tag or branch of a model of the Hub, needed with it; the commit that it is at enters the key."""
    content: str | None = Field(default=None, pattern=r"^[0-9a-f]{40}$")
    """Digest of the files of a folder that loading reads. Filled in; a folder with another content is refused."""
    trust_remote_code: bool = False
    """Run Python code that lies with the model: only for a commit, or a folder, whose code you have read."""
    safetensors_only: bool = True
    """Refuse weights that are pickled: loading them can run code."""
    build: BuiltStudent | None = None

    @model_validator(mode="after")
    def _is_one_of_two(self) -> "StudentSpec":
        if (self.model is None and self.content is None) == (self.build is None):
            raise ValueError(
                "name either `model` (a repository of the Hub, or a folder) or `build` (a small model made here)"
            )
        in_folder = self.content is not None or (self.model is not None and Path(self.model).expanduser().is_dir())
        if self.model is not None and self.revision is None and not in_folder:
            raise ValueError(f"name the revision of {self.model}, best a commit (or a folder that is there)")
        return self

    def in_key(self) -> dict[str, Any]:
        """A folder by its content, wherever it lies."""
        return super().in_key() | ({"model": None} if self.content else {})


Reporter = Literal["trackio", "wandb", "mlflow"]
"""Where the curves of a training can be sent while they grow, as transformers' `report_to` names it."""


class TrackioSpec(Spec):
    """Where the curves of trainings grow; changes nothing of what is made, and enters no key."""

    space_id: str | None = Field(default=None, pattern=r"^[\w.-]+/[\w.-]+$")
    """A Space of the Hub, such as owner/curves, which Trackio makes where there is none; HF_TOKEN must be allowed to
    write to it. Left out, the curves lie in the store's folder, where `apprentice dashboard` shows them."""
    private: bool = True
    """Whether a Space that is made is private."""
    url: str = ""
    """Where a dashboard of the store runs, such as http://127.0.0.1:7860: a link on the run's page."""

    @field_validator("url")
    @classmethod
    def _holds_no_secret(cls, url: str) -> str:
        return without_secrets(url, "whoever opens it logs in there")


class Prices(Spec):
    """What a teacher costs, in USD for a million tokens."""

    prompt: float = Field(ge=0.0)
    """Of prompt tokens."""
    cached: float = Field(default=0.0, ge=0.0)
    """Of prompt tokens that the endpoint had cached."""
    completion: float = Field(ge=0.0)
    """Reasoning tokens included."""


DEFAULT_TEACHER = "gpt-5-mini"


class TeacherSpec(Spec):
    """Who shows how: a model at any OpenAI-compatible endpoint, or else the environment's scripted policy."""

    scripted_error_rate: float | None = Field(default=None, ge=0.0, lt=1.0)
    """Set: no model, but the scripted policy plays, wrong on this share of the questions. Costs nothing."""
    base_url: str | None = None
    """The endpoint; left out, OpenAI's own. Not beside `scripted_error_rate`."""
    model: str = ""
    """As the endpoint calls it; left out, gpt-5-mini. Not beside `scripted_error_rate`."""
    max_tokens: int = Field(default=1024, ge=1)
    """Tokens an answer may take, reasoning included."""
    temperature: float = Field(default=1.0, ge=0.0, le=2.0)
    """Left out of the request for models that refuse it."""
    serves_student: bool = False
    """A student of ours behind vLLM or the like: it is sent the tools and the template arguments of its training."""
    key_block: str | None = Field(default=None, json_schema_extra=OPERATIONAL)
    """Name of the Prefect Secret block that holds the key; left out, the environment variable `key_variable` does."""
    key_variable: str = Field(default="OPENAI_API_KEY", json_schema_extra=OPERATIONAL)
    """The environment variable that holds the key; the key itself never stands in a recipe."""
    timeout: float = Field(default=60.0, gt=0, json_schema_extra=OPERATIONAL)
    """Seconds for one request."""
    patience: float = Field(default=120.0, gt=0, json_schema_extra=OPERATIONAL)
    """Seconds over which a request that fails is sent again; then collection stops, to be resumed."""
    prices: Prices | None = Field(default=None, json_schema_extra=OPERATIONAL)
    """Left out, costs are not counted."""
    budget_usd: float | None = Field(default=None, gt=0, json_schema_extra=OPERATIONAL)
    """Hard cap on what one collection costs, resumed ones included; needs `prices`."""
    requests_per_minute: float | None = Field(default=None, gt=0, json_schema_extra=OPERATIONAL)
    """The endpoint's limit; concurrent runs share it where a Prefect server is in use."""
    tokens_per_minute: float | None = Field(default=None, gt=0, json_schema_extra=OPERATIONAL)
    """Prompt and answer together, the answer counted as `max_tokens`, as endpoints count when they admit a request."""

    @field_validator("base_url")
    @classmethod
    def _holds_no_secret(cls, url: str | None) -> str | None:
        return url and without_secrets(url, "name the environment variable of its key: teacher.key_variable")

    @property
    def called(self) -> str:
        """Its name, for people."""
        return who_played(self.model_dump())

    @model_validator(mode="before")
    @classmethod
    def _is_one_of_two(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        if given.get("scripted_error_rate") is None:
            return given | {"model": given.get("model") or DEFAULT_TEACHER}
        if named := [name for name in ("model", "base_url") if given.get(name)]:
            raise ValueError(
                f"scripted_error_rate names a script and {' and '.join(named)} a model, and only one of them can play; "
                f"leave scripted_error_rate out for the model, or {' and '.join(named)} for the script"
            )
        return given

    @model_validator(mode="after")
    def _can_count(self) -> "TeacherSpec":
        if self.budget_usd is not None and self.prices is None:
            raise ValueError("budget_usd needs prices (teacher.prices: {prompt: …, cached: …, completion: …})")
        return self


class CollectSpec(Spec):
    """How the teacher plays."""

    asks: int = Field(default=3, ge=1)
    """Times the teacher is asked for one turn before a malformed answer counts as the episode's failure."""
    max_failed: float = Field(default=0.05, ge=0.0, le=1.0)
    """Share of episodes that may be lost to infrastructure, and share on which the environment may break; above it the
    stage stops, to be resumed."""
    shards: int = Field(default=1, ge=1, json_schema_extra=OPERATIONAL)
    """Seed ranges that are collected as tasks of their own, on the flow's task runner; the dataset is the same."""


class LengthsSpec(Spec):
    """How max_length follows from the lengths."""

    margin: int = Field(default=16, ge=0)
    """Tokens added to the 99th percentile."""
    multiple_of: int = Field(default=8, ge=1)
    """max_length is rounded up to it."""


class EvaluateSpec(Spec):
    """How a model is examined."""

    questions: int = Field(default=400, ge=1)
    """Distinct held-out questions. 400 show a difference of about 7 points at 50%; 1,000 one of about 4."""
    decoding: Literal["greedy", "sampled"] = "greedy"
    """`sampled`: at the temperature of training, the policy as it is; `greedy`: its most likely answer."""
    temperature: float = Field(default=1.0, gt=0.0)
    """Of sampled decoding."""
    max_new_tokens: int = Field(default=64, ge=1)
    """Tokens a turn may take."""
    batch_size: int = Field(default=64, ge=1, json_schema_extra=OPERATIONAL)
    """Episodes generated together, and as many sessions."""
    max_failed: float = Field(default=0.05, ge=0.0, le=1.0, json_schema_extra=OPERATIONAL)
    """Share of episodes on which the environment may break, twice each; above it the stage stops, to be resumed."""
    samples: int = Field(default=1, ge=1)
    """Completions of each question; more than one, `sampled`, gives pass@k."""
    protocol: Literal["parity", "tutorial"] = "parity"
    """`parity`: prompt and parser of training. `tutorial`: as the public SFT tutorial prints it, for comparison
    with its figures only."""

    @model_validator(mode="after")
    def _samples_differ(self) -> "EvaluateSpec":
        if self.samples > 1 and self.decoding == "greedy":
            raise ValueError(f"samples: {self.samples} with greedy decoding are the same one; set decoding: sampled")
        return self


class ProbeSpec(Spec):
    """What the SFT model is asked before GRPO, to see whether the task leaves GRPO something to do."""

    questions: int = Field(default=48, ge=0)
    """Of those that GRPO trains on, one sample each, drawn as GRPO draws them; 0 leaves the probe out. 48 tell a rate
    within 14 points, in the time of a small evaluation."""


class GateSpec(Spec):
    """When a trained model becomes the champion. Written down before it is trained: it enters the decision's key."""

    metric: Literal["accuracy", "format_compliance", "mean_score"] = "accuracy"
    """What decides."""
    margin: float = Field(default=0.0, ge=0.0, lt=1.0)
    """By how much the challenger must be better, as a share; the interval must lie above zero besides."""
    max_overlap: float = Field(default=0.0, ge=0.0, le=1.0)
    """Share of the evaluation's questions that training may have seen; above it nothing is compared."""
    least_unseen: float = Field(default=0.5, gt=0.0, le=1.0)
    """Share of the questions that neither the champion nor the challenger has seen; on fewer nothing is decided."""
