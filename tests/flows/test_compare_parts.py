"""What `evaluate` hands on for each kind of model; the evaluations are stand-ins."""

from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from apprentice.flows import compare_models as module
from apprentice.flows.recipe.loading import load_recipe
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.settings.endpoint import EndpointSpec
from apprentice.tasks.settings.spec import EvaluateSpec, StudentSpec, Window
from tests.flows.commands import TOY

RECIPE = load_recipe(TOY, [])
SPEC = EvaluateSpec(questions=5, max_new_tokens=7, temperature=0.3, samples=2, decoding="sampled")
WINDOW = Window(start=3, size=5)


class Work:
    """Everything that was asked for, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
        self.asked: list[Any] = []
        self.servers: list[Any] = []
        self.store: Any = SimpleNamespace(fetch=lambda each: f"files of {each}", root=tmp_path)

        @contextmanager
        def servers(recipe: Any) -> Any:
            self.servers.append(recipe)
            yield SimpleNamespace(recipe=recipe, environment=lambda name: f"server of {name}")

        def context(store: Any, servers: Any, **given: Any) -> Any:
            return SimpleNamespace(
                store=store, servers=servers, trusted=given.get("trusted"), recipe=given.get("recipe")
            )

        def preflight(recipe: Any, window: Any) -> Any:
            return lambda *given: self.asked.append(("preflight", recipe, window, given[-1]))

        def keep(name: str) -> Any:
            def stage(run: Any, *given: Any) -> str:
                self.asked.append((name, run, *given))
                return f"{name} {given[1] if name == 'evaluate' else ''}".strip()

            return stage

        monkeypatch.setattr(module, "with_discovered_settings", lambda recipe: recipe)
        monkeypatch.setattr(module, "open_store", lambda recipe, **how: self.asked.append(("store", how)) or self.store)
        monkeypatch.setattr(module, "RunServers", servers)
        monkeypatch.setattr(module, "RunContext", context)
        monkeypatch.setattr(module, "EvaluationPreflight", preflight)
        for name in ("exam", "evaluate", "evaluate_endpoint", "student"):
            monkeypatch.setattr(module, name, keep(name))
        monkeypatch.setattr(module, "read_episodes", lambda folder: [folder])
        monkeypatch.setattr(module, "count_seen", lambda folder, episodes: f"{folder} in {episodes}")
        monkeypatch.setattr(module, "compared", lambda *given: {"compared": given})

    def of(self, name: str) -> list[Any]:
        return [each[1:] for each in self.asked if each[0] == name]


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Work:
    return Work(monkeypatch, tmp_path)


def test_checkpoints_and_endpoints_play_the_same_questions_each_on_its_own_servers(
    work: Work, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("ENDPOINT_API_KEY", "k")
    monkeypatch.setattr(module, "checkpoint_of", lambda run, recipe, name, questions: f"checkpoint {name}")
    monkeypatch.setattr(module, "trusted_with", lambda recipe, names: [f"trusts {names}"])
    url = "http://there/v1#toy"
    found = module.compare_models.fn(RECIPE, ["one", url], SPEC, WINDOW, "then", True, ["a folder"])
    ((run, environment, window, questions),) = work.of("exam")
    assert (environment, window, questions) == (RECIPE.environment, WINDOW, 5)
    assert run.preflight is not None
    ((run, *given),) = work.of("evaluate")
    assert given == [SPEC, "checkpoint one", RECIPE.environment, "exam", RECIPE.seed]
    assert (run.trusted, run.recipe, run.store) == (["trusts ['a folder']"], RECIPE.for_record(), work.store)
    assert run.preflight is not None
    ((run, spec, endpoint, *given),) = work.of("evaluate_endpoint")
    assert (spec, given) == (SPEC, [RECIPE.environment, "exam", "then"])
    assert (endpoint.base_url, endpoint.model, endpoint.serves_student) == ("http://there/v1", "toy", True)
    assert (run.trusted, run.recipe, run.servers.recipe.teacher) == (None, RECIPE.for_record(), endpoint)
    assert run.preflight is not None
    assert work.servers[0] == RECIPE
    assert work.of("store") == [({"hub_needed": False},)]
    episodes = {"one": ["files of evaluate checkpoint one"], url: ["files of evaluate_endpoint"]}
    seen = {"one": f"files of checkpoint one in {episodes['one']}", url: None}
    assert found == {"compared": (episodes, seen, "parity")}


@pytest.mark.parametrize(
    ("decoding", "serves_student", "teacher", "tokens", "temperature"),
    [
        ("sampled", False, True, RECIPE.teacher.max_tokens if RECIPE.teacher else 0, 0.3),
        ("greedy", True, True, 7, 0.0),
        ("greedy", False, False, 7, 0.0),
    ],
)
def test_inspect_gets_the_limits_of_who_is_asked_and_its_logs_are_named(
    decoding: Any, serves_student: bool, teacher: bool, tokens: int, temperature: float, work: Work, monkeypatch: Any
):
    recipe = RECIPE if teacher else RECIPE.model_copy(update={"teacher": None})
    spec = SPEC.model_copy(update={"decoding": decoding})
    opened, tasks, ran, printed = [], [], [], []

    @contextmanager
    def pool(*given: Any, **how: Any) -> Any:
        opened.append((given, how))
        yield "the pool"

    monkeypatch.setattr(module, "EnvironmentPool", pool)
    monkeypatch.setattr(module, "read_questions", lambda folder, window: f"{window} of {folder}")
    monkeypatch.setattr(module, "episodes_task", lambda *given: tasks.append(given) or "a task")
    monkeypatch.setattr(
        module, "run_inspect", lambda *given: ran.append(given) or {"log": f"log {given[0]} {len(ran)}"}
    )
    monkeypatch.setattr(module, "records_of", lambda log: [f"records of {log}"])
    monkeypatch.setattr(module.announce, "console", SimpleNamespace(print=printed.append))
    compared: list[Any] = []
    monkeypatch.setattr(module, "compared", lambda *given: compared.append(given) or {"models": {"a": {}, "b": {}}})
    report = module.inspect_models.fn(recipe, ["a", "b"], spec, WINDOW, serves_student, "http://there")
    assert work.of("preflight") == [(recipe, WINDOW, "exam")]
    ((_, *asked),) = work.of("exam")
    assert asked == [recipe.environment, WINDOW, 5]
    how = {"say": module.announce.warn, "lease": module.leases}
    assert opened == [((recipe.environment, "server of reasoning_gym"), how)] * 2
    rows = "evaluate of files of exam"
    assert tasks == [("the pool", recipe.environment, rows, tokens, temperature, 2, serves_student)] * 2
    assert ran == [("a task", model, work.store.root / "inspect" / "toy", "http://there") for model in ("a", "b")]
    assert compared == [
        ({"a": ["records of log a task 1"], "b": ["records of log a task 2"]}, {"a": None, "b": None}, "inspect")
    ]
    assert report == {"models": {"a": {"log": "log a task 1"}, "b": {"log": "log a task 2"}}}
    assert printed == [f"  Inspect's log of {model}: log a task {n}" for n, model in ((1, "a"), (2, "b"))]


def test_a_model_is_the_champion_a_checkpoint_or_a_student_whose_code_may_run_if_it_was_granted(
    work: Work, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    current: list[Any] = [None]
    monkeypatch.setattr(module, "Champions", lambda store: SimpleNamespace(current=lambda: current[0]))
    monkeypatch.setattr(module, "checkpoint_named", lambda store, name: "a checkpoint" if name == "0123456" else None)
    monkeypatch.setattr(module, "pinned", lambda spec: spec.model_copy(update={"revision": "c" * 40}))
    run: Any = SimpleNamespace(store=work.store, trusted=[])

    def named(name: str) -> Any:
        return module.checkpoint_of(run, RECIPE, name, "asked")  # type: ignore[arg-type]

    with pytest.raises(Stop, match="toy has no champion"):
        named("champion")
    current[0] = "the champion"
    assert (named("champion"), named("0123456")) == ("the champion", "a checkpoint")
    with pytest.raises(Stop, match="nobody is not a checkpoint of toy, a folder, or a revision"):
        named("nobody")
    assert named("owner/name@main") == "student"
    fresh = work.of("student")[-1]
    assert fresh[1:] == (StudentSpec(model="owner/name", revision="c" * 40), RECIPE.environment, "asked", RECIPE.seed)
    granted = StudentSpec(model="owner/name", revision="c" * 40, trust_remote_code=True)
    run.trusted = [granted.model_copy(update={"model": "owner/other"}), granted]
    named("owner/name@main")
    assert work.of("student")[-1][1] == granted
    assert module.trusted_with(RECIPE, ["owner/name@main"]) == [granted]
    own = RECIPE.model_copy(update={"student": StudentSpec(model="me/mine", revision="main", trust_remote_code=True)})
    assert [each.model for each in module.trusted_with(own, ["owner/name@main"])] == ["me/mine", "owner/name"]
    with pytest.raises(Stop, match="--trust-code nobody is not a model"):
        module.trusted_with(RECIPE, ["nobody"])


@pytest.mark.parametrize("same_host", [True, False])
def test_an_endpoint_on_another_host_never_gets_the_teachers_key(same_host: bool, monkeypatch: pytest.MonkeyPatch):
    for name in ("MY_KEY", "ENDPOINT_API_KEY"):
        monkeypatch.setenv(name, "k")
    teacher = "teacher={model: big, base_url: 'http://mine/v1', key_variable: MY_KEY, max_tokens: 77}"
    recipe = load_recipe(TOY, [teacher])
    found = module._endpoint(recipe, f"http://{'mine' if same_host else 'other'}/v1#toy", False)
    assert found is not None
    assert (found.key_variable, found.max_tokens, found.model) == (
        "MY_KEY" if same_host else "ENDPOINT_API_KEY",
        77,
        "toy",
    )
    assert recipe.teacher is not None
    assert module._endpoint(recipe, "teacher", True) == EndpointSpec.model_validate(recipe.teacher.model_dump())
    with pytest.raises(Stop, match="does not name a model of the endpoint"):
        module._endpoint(recipe, "http://mine/v1", False)
    assert module._endpoint(recipe, "a folder", False) is None
    with pytest.raises(Stop, match="toy has no teacher"):
        module._endpoint(recipe.model_copy(update={"teacher": None}), "teacher", False)
