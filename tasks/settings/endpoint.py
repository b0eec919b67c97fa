"""The settings of the teacher: a model behind an endpoint, or the environment's script.

In: a recipe's section `teacher`, or the settings in a record. Out: validated settings, and the teacher's display name.
docs/recipes.md shows each field's docstring.
"""

import ipaddress
import os
from typing import Any, Self
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from apprentice.envs.source import digest_of_script
from apprentice.envs.wire.server import without_secrets
from apprentice.tasks.settings.spec import ThinkingSpec
from apprentice.tasks.settings.spec_base import OPERATIONAL, WHEN_GIVEN, Spec

OPENAI = "api.openai.com"
LOCAL = (".local", ".internal", ".lan", ".home", ".localhost")


def who_played(teacher: dict[str, Any]) -> str:
    """Such as "gpt-5-mini at api.openai.com"."""
    if (rate := teacher.get("scripted_error_rate")) is not None:
        return f"scripted policy, error rate {rate:g}: not a model"
    return f"{teacher.get('model')} at {_host(teacher.get('base_url'))}"


def who_played_for_strangers(teacher: dict[str, Any]) -> str:
    """Like `who_played`, but without the host name of a private endpoint."""
    host = _host(teacher.get("base_url"))
    if teacher.get("scripted_error_rate") is not None or _is_public(host):
        return who_played(teacher)
    return f"{teacher.get('model')} at a private endpoint"


def _host(base_url: str | None) -> str:
    if not base_url:
        return OPENAI
    try:
        return urlsplit(base_url).hostname or "an address without a host"
    except ValueError:
        return "an address without a host"


def _is_public(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_global
    except ValueError:
        return "." in host and not host.endswith(LOCAL)


class Prices(Spec):
    """The teacher's prices in USD per million tokens."""

    prompt: float = Field(ge=0.0)
    """Price of prompt tokens."""
    cached: float | None = Field(default=None, ge=0.0)
    """Price of cached prompt tokens; that of other prompt tokens by default."""
    cache_write: float | None = Field(default=None, ge=0.0)
    """Price of prompt tokens that are written into a cache; that of other prompt tokens by default."""
    completion: float = Field(ge=0.0)
    """Price of completion tokens, reasoning included."""


DEFAULT_TEACHER = "gpt-5-mini"


class ThoughtsSpec(Spec):
    """What is taken of a teacher's reasoning where the student thinks (`student.thinking`)."""

    max_tokens: int | None = Field(default=None, ge=1)
    """Maximum tokens of a thought, by an estimate: a digit, up to four letters, or a mark is one. For a longer one the
    teacher is asked again for a shorter one, at most `collect.asks` times. Default: `student.thinking.max_tokens`."""
    shortest_of: int = Field(default=1, ge=1, le=16)
    """How often the teacher plays each question; the right episode with the shortest thoughts is recorded."""
    instruction: str = Field(default="")
    """Filled in from `student.thinking.instruction`."""


class TeacherSpec(Spec):
    """The teacher: a model behind an OpenAI-compatible endpoint, or the environment's scripted policy."""

    scripted_error_rate: float | None = Field(default=None, ge=0.0, lt=1.0)
    """Use the scripted policy instead of a model; it errs on this share of the questions. Costs nothing."""
    script: str = Field(default="", json_schema_extra=WHEN_GIVEN)
    """Digest of the code by which scripts err. Always filled in, and empty for a model."""
    base_url: str | None = None
    """The endpoint; default: OPENAI_BASE_URL, or OpenAI. Not part of the key: a server may come back elsewhere. It may
    have the query api-version, as Azure's. Cannot be combined with `scripted_error_rate`."""
    provider: str | None = Field(default=None, min_length=1, json_schema_extra=WHEN_GIVEN)
    """A name, for two endpoints that serve different models under one model name."""
    model: str = ""
    """The model's name at the endpoint; default: gpt-5-mini. Cannot be combined with `scripted_error_rate`."""
    moved: bool = Field(default=False, json_schema_extra=OPERATIONAL)
    """The same model is at another address now: a collection that started at the old one continues."""
    max_tokens: int = Field(default=1024, ge=1)
    """Maximum tokens of an answer, reasoning included."""
    temperature: float | None = Field(default=1.0, ge=0.0, le=2.0)
    """Sampling temperature; null sends none. It is left out, with a warning, where the endpoint refuses it."""
    request: dict[str, Any] = Field(default={}, json_schema_extra=WHEN_GIVEN)
    """Further fields of each request, such as {reasoning_effort: low}; null removes a field that is sent by default."""
    keep_text: bool = Field(default=False, json_schema_extra=WHEN_GIVEN)
    """Keep the text beside a call: SFT then learns it, too. The filter drops texts that look like reasoning."""
    thoughts: ThoughtsSpec | None = Field(default=None, json_schema_extra=WHEN_GIVEN)
    """What is taken of its reasoning where the student thinks (`student.thinking`): `reasoning_content`, `reasoning`,
    thinking blocks, or the text beside a call. Always filled in then."""
    stream: bool = Field(default=False, json_schema_extra=OPERATIONAL)
    """Ask for streamed answers. An endpoint that only streams is noticed without it."""
    headers: dict[str, str] = Field(default={}, json_schema_extra=OPERATIONAL)
    """Further headers of each request, none of them a secret."""
    key_header: str = Field(default="", pattern=r"^[A-Za-z-]*$", json_schema_extra=OPERATIONAL)
    """A header that carries the key besides Authorization, such as api-key at Azure."""
    serves_student: bool = False
    """The endpoint serves a student trained here, for example with vLLM: send the tools and template arguments of its
    training."""
    key_block: str | None = Field(default=None, json_schema_extra=OPERATIONAL)
    """Name of the Prefect Secret block with the API key; default: the environment variable `key_variable`."""
    key_variable: str = Field(default="OPENAI_API_KEY", json_schema_extra=OPERATIONAL)
    """The environment variable with the API key; the key itself never appears in a recipe."""
    timeout: float = Field(default=60.0, gt=0, json_schema_extra=OPERATIONAL)
    """Timeout of one request, in seconds."""
    patience: float = Field(default=120.0, gt=0, json_schema_extra=OPERATIONAL)
    """Seconds for which a failing request is retried; then collection stops and can be resumed."""
    prices: Prices | None = Field(default=None, json_schema_extra=OPERATIONAL)
    """Without prices, costs are not counted."""
    budget_usd: float | None = Field(default=None, gt=0, json_schema_extra=OPERATIONAL)
    """Hard cap on the cost of one collection, including resumed runs; needs `prices`."""
    requests_per_minute: float | None = Field(default=None, gt=0, json_schema_extra=OPERATIONAL)
    """The endpoint's rate limit; with a Prefect server, concurrent runs share it."""
    tokens_per_minute: float | None = Field(default=None, gt=0, json_schema_extra=OPERATIONAL)
    """The endpoint's token limit: prompt plus `max_tokens` per request, as endpoints count when they admit it."""

    @field_validator("base_url")
    @classmethod
    def _holds_no_secret(cls, url: str | None) -> str | None:
        bare, _, query = (url or "").partition("?")
        version = query.startswith("api-version=") and "&" not in query
        without_secrets(
            bare if version else url or "", "name the environment variable of its key: teacher.key_variable"
        )
        return url

    @field_validator("request")
    @classmethod
    def _leaves_the_conversation(cls, request: dict[str, Any]) -> dict[str, Any]:
        if taken := sorted(request.keys() & {"messages", "model", "tools", "stream", "n", "max_tokens"}):
            raise ValueError(
                f"{', '.join(taken)} cannot be set here; model, stream and max_tokens are fields of teacher"
            )
        return request

    @field_validator("headers")
    @classmethod
    def _hold_no_key(cls, headers: dict[str, str]) -> dict[str, str]:
        if secret := [name for name in headers if name.lower() in ("authorization", "api-key", "x-api-key")]:
            raise ValueError(f"{secret[0]} would put a key into the recipe; set teacher.key_header to that name")
        return headers

    def in_key(self) -> dict[str, Any]:
        """The address is no part of what a model says."""
        return super().in_key() | {"base_url": None}

    def in_made_by(self) -> dict[str, Any]:
        return self.in_key() | {"base_url": self.base_url}

    def located(self) -> "TeacherSpec":
        """The spec with the address that the environment variable OPENAI_BASE_URL decides, where it is left out."""
        inherited = os.environ.get("OPENAI_BASE_URL", "").strip()
        if self.scripted_error_rate is not None or self.base_url or not inherited:
            return self
        return type(self).model_validate(self.model_dump() | {"base_url": inherited})

    def teaching(self, thinking: ThinkingSpec | None) -> Self:
        """The spec for a student that thinks so, or answers at once. Raises ValueError for thoughts nobody learns."""
        if thinking is None:
            if self.thoughts is not None:
                raise ValueError("teacher.thoughts needs a student that thinks: set student.thinking: text, or native")
            return self
        own = self.thoughts or ThoughtsSpec()
        most = None if self.serves_student else own.max_tokens  # a served student has its own budget
        filled = {"max_tokens": most or thinking.max_tokens, "instruction": thinking.instruction}
        return type(self).model_validate(self.model_dump() | {"thoughts": own.model_copy(update=filled)})

    @property
    def needs_key(self) -> bool:
        """Whether the endpoint asks for an API key."""
        return self.scripted_error_rate is None

    @property
    def thought_tokens(self) -> int:
        """Tokens that a served student's thought may have on top of those of its answer; 0 where it writes none."""
        return (self.thoughts.max_tokens or 0) if self.serves_student and self.thoughts else 0

    @property
    def called(self) -> str:
        """The display name."""
        return who_played(self.model_dump())

    @model_validator(mode="before")
    @classmethod
    def _is_one_of_two(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        if given.get("scripted_error_rate") is None:
            return given | {"model": given.get("model") or DEFAULT_TEACHER, "script": ""}
        if named := [name for name in ("model", "base_url") if given.get(name)]:
            raise ValueError(
                f"scripted_error_rate selects a script and {' and '.join(named)} a model, and only one of them can "
                f"play; remove scripted_error_rate for the model, or {' and '.join(named)} for the script"
            )
        return given | {"script": digest_of_script(shows_working=given.get("thoughts") is not None)}

    @model_validator(mode="after")
    def _can_count(self) -> "TeacherSpec":
        if self.budget_usd is not None and self.prices is None:
            raise ValueError("budget_usd needs prices (teacher.prices: {prompt: …, cached: …, completion: …})")
        return self


class EndpointSpec(TeacherSpec):
    """A model behind an endpoint that is evaluated: at another address it may be another one."""

    def in_key(self) -> dict[str, Any]:
        return super().in_key() | {"base_url": self.base_url}


class LocalEndpoint(EndpointSpec):
    """A server that this process has started on this machine; it asks for no key."""

    @property
    def needs_key(self) -> bool:
        return False
