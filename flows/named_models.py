"""The models that `apprentice evaluate --model` names: a checkpoint, the champion, an endpoint, the teacher.

In: a name as a user writes it, the recipe. Out: an endpoint, a checkpoint, or the spec of a student; and whose code may
run.
"""

from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pydantic import ValidationError

from apprentice.envs.wire.server import without_secrets
from apprentice.flows.pipeline import Pipeline
from apprentice.tasks.artifacts.foreign.models import is_repository
from apprentice.tasks.artifacts.types import Checkpoint, Questions
from apprentice.tasks.judgement.champions import Champions
from apprentice.tasks.lineage.locate import checkpoint_named
from apprentice.tasks.models.student_model import as_its_template_says, pinned
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.settings.endpoint import EndpointSpec, TeacherSpec
from apprentice.tasks.settings.spec import StudentSpec
from apprentice.tasks.student import student


def check_addresses(names: list[str]) -> None:
    """Raise Stop if an endpoint's URL holds a secret: models' names appear in logs and in Prefect's database."""
    for name in names:
        url, _, _ = name.partition("#")
        if "://" in url:
            try:
                without_secrets(url, "its key comes from ENDPOINT_API_KEY, or from the recipe's teacher.key_variable")
            except ValueError as error:
                raise Stop(f"A model's URL cannot be used: {error}.", "Write https://host/v1#model.") from None


def endpoint_named(given: TeacherSpec | None, name: str, serves_student: bool) -> EndpointSpec | None:
    """Return the endpoint of that name, asked as the teacher `given`; None for other models. Raises Stop."""
    if name == "teacher":
        if given is None:
            raise Stop("The recipe has no teacher.", "Name another model.")
        return EndpointSpec.model_validate(given.model_dump())
    if not name.startswith(("http://", "https://")):
        return None
    url, _, model = name.partition("#")
    if not model:
        raise Stop(f"{name} does not name a model of the endpoint.", f"Write {url}#MODEL.")
    teacher = given or TeacherSpec()
    on_teachers_host = teacher.scripted_error_rate is None and _host(url) == _host(teacher.base_url)
    own = {"base_url": url, "model": model, "serves_student": serves_student}
    if not on_teachers_host:  # never send the teacher's key to another host
        own |= {"key_block": None, "key_variable": "ENDPOINT_API_KEY"}
    excluded = {*own, "scripted_error_rate", "budget_usd", "prices"}
    try:
        return EndpointSpec(**own, **teacher.model_dump(exclude=excluded))
    except ValidationError as error:
        mistakes = "; ".join(mistake["msg"] for mistake in error.errors())
        raise Stop(f"{_host(url)} cannot be used: {mistakes}.", "Set the key as ENDPOINT_API_KEY.") from None


def _host(url: str | None) -> str | None:
    return urlsplit(url or "https://api.openai.com").hostname


def checkpoint_of(stages: Pipeline, name: str, questions: Questions | None = None) -> Checkpoint:
    """Return the model of that name, as in `compare_models`, without endpoints. Raises Stop if there is none.

    Args:
        questions: From which a student's tokenizer is built; default: those of the run.
    """
    run, recipe = stages.run, stages.recipe
    if name == "champion":
        champion = Champions(run.store).current()
        if champion is None:
            raise Stop(
                f"{recipe.name} has no champion.", "Run the recipe; the gate promotes a model that is good enough."
            )
        return champion
    if (found := checkpoint_named(run.store, name)) is not None:
        return found
    if (spec := model_named(name)) is None:
        raise Stop(
            f"{name} is not a checkpoint of {recipe.name}, a folder, or a revision of a model on the Hub.",
            "Write a key, a revision or a tag from the report's lineage, champion, teacher, a folder, "
            "owner/name@revision or https://host/v1#model.",
        )
    granted = [each for each in run.trusted if each.model == spec.model and each.content]
    if not granted:
        spec = pinned(spec)
        granted = [each for each in run.trusted if (each.model, each.revision) == (spec.model, spec.revision)]
    named = as_its_template_says((granted or [spec])[0])
    return student(run, named, recipe.environment, questions or stages.questions, recipe.seed)


def model_named(name: str, **settings: Any) -> StudentSpec | None:
    """Return the spec of a folder, or of `owner/name@revision` on the Hub; None if `name` is neither."""
    model, _, revision = name.partition("@")
    if Path(name).is_dir():
        return StudentSpec(model=str(Path(name).absolute()), **settings)
    return StudentSpec(model=model, revision=revision, **settings) if revision and is_repository(model) else None


def trusted_with(own: StudentSpec, names: list[str]) -> list[StudentSpec]:
    """Return the students whose Python code may run: the recipe's if it allows that, and `names`. Raises Stop."""
    others = []
    for name in names:
        spec = model_named(name, trust_remote_code=True)
        if spec is None:
            raise Stop(f"--trust-code {name} is not a model.", "Write a folder, or owner/name@revision.")
        others.append(pinned(spec))
    return [*([pinned(own)] if own.trust_remote_code or not own.safetensors_only else []), *others]
