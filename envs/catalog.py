"""The catalogue of environments: finds one by its name, a folder in `envs/` or the entry point of another package, or
by the path of its folder.

In: a name and settings from a recipe. Out: `EnvironmentSpec` (the frozen identity of a task), its class, its server.
"""

import difflib
import importlib
import importlib.util
import re
from collections.abc import Iterable
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, model_validator
from typing_extensions import get_original_bases

from apprentice.envs import folders
from apprentice.envs.base import ToolEnvironment
from apprentice.envs.defaults import failed_import
from apprentice.envs.game import Game
from apprentice.envs.mixture import SessionOfParts
from apprentice.envs.old_names import class_of
from apprentice.envs.one_file import environment_of, game_in
from apprentice.envs.openenv.tasks import rows_of
from apprentice.envs.paths import FilePath
from apprentice.envs.player import Mixture, Player, TextCall
from apprentice.envs.wire.session import Session

if TYPE_CHECKING:
    from fastapi import FastAPI
    from openenv.core.env_server.interfaces import Environment

CATALOGUE = {
    "browsergym": "fill in a web form in a real browser, shown as text",
    "catch": "move a paddle under a falling ball (OpenSpiel)",
    "echo": "repeat a text, also on servers of the published Echo environment",
    "number": "find a number by higher and lower: one file, the one to copy",
    "multi": "several other environments in one run, mixed by weight",
    "reasoning_gym": "one question, one answer, checked by an algorithm (over 100 datasets)",
    "sudoku": "fill the empty cells of a grid, one at a time (TextArena)",
    "wordle": "guess a secret word in six guesses (TextArena)",
}
"""Every environment of this project with a one-line description; a name is a folder or file beside this one. No entry
points, so that an environment that is added to a checkout needs no new installation."""
ADAPTERS = {
    "openenv": "any OpenEnv environment on a server that somebody else runs: typed actions or MCP tools",
    "verifiers": "any environment of the verifiers package",
}
"""Environments of others, played by a class of this project; each is a folder beside this file."""
ANY = "openenv"
"""The adapter that plays any OpenEnv server, and the name of an environment that has none."""
OLD = {"mcp": ANY}
"""Other names of an adapter, which recipes and stored results have."""
GROUP = "apprentice.environments"
"""The entry points of other packages: a name, and a module with a `Game`, or one or a package as those here."""


class ExtraMissing(ValueError):
    """An optional dependency of an environment's server is not installed."""


class NoServer(ValueError):
    """The environment has no server here: a mixture, or one that others serve."""


@cache  # the process keeps to the packages that were installed when it began
def known() -> dict[str, str]:
    """Return the package of every environment, by name. Raises ValueError where two have one name."""
    packages = {name: f"apprentice.envs.{name}" for name in CATALOGUE | ADAPTERS}
    packages |= {name: packages[now] for name, now in OLD.items()}
    for point in entry_points(group=GROUP):
        if packages.setdefault(point.name, point.value) != point.value:
            raise ValueError(
                f"two installed packages name an environment {point.name!r}: {packages[point.name]} and {point.value}; "
                "uninstall one of them, or rename its entry point"
            )
    for folder in folders.listed():
        _take(folder, packages)
    return packages


def _take(folder: Path, packages: dict[str, str]) -> None:
    """Import the environment in a folder or file and add it to `packages`. Raises ValueError if its name is taken."""
    name = folder.stem
    if (taken := packages.get(name, name)) != name:
        raise ValueError(f"there is an environment {name!r} already, {taken}: rename {folder}")
    packages[name] = folders.import_package(folder)


def add_folder(path: Path) -> tuple[str, Path]:
    """Make the environment in a folder or file known, here and to the servers that are started here; return its name
    and where it is.

    Raises ValueError if there is none, or its name is taken.
    """
    folder = folders.package_at(path)
    if folder not in folders.listed():
        _take(folder, dict(known()))
        folders.add(folder)
        known.cache_clear()
    return folder.stem, folder


def described(name: str) -> str:
    """Return an environment's description in one line, for a package the first of its docstring."""
    own = (CATALOGUE | ADAPTERS).get(OLD.get(name, name))
    return own or (importlib.import_module(package_of(name)).__doc__ or name).strip().split("\n")[0]


def game_of(name: str) -> type[Game] | None:
    """Return the game of an environment that is one file; None for one that is a folder."""
    return game_in(importlib.import_module(package_of(name))) if ":" not in name else None


def module_of(name: str) -> ModuleType:
    """Return the module of an environment's class: `env` in its package, or the one file that it is."""
    if ":" in name:
        return importlib.import_module(name.partition(":")[0])
    module = importlib.import_module(package_of(name))
    return importlib.import_module(f"{module.__name__}.env") if hasattr(module, "__path__") else module


def folder_of(name: str) -> Path:
    """Return the folder of an environment's package, or of its file."""
    return Path(str(importlib.import_module(package_of(name)).__file__)).resolve().parent


def package_of(name: str) -> str:
    """Return the package of an environment; empty for a class in a separate module.

    Raises ValueError with the nearest known name.
    """
    if ":" in name:
        module = importlib.import_module(name.partition(":")[0])
        return module.__name__ if hasattr(module, "__path__") else module.__name__.rpartition(".")[0]
    packages = known()
    if name not in packages:
        near = difflib.get_close_matches(name, packages, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(packages)}"
        raise ValueError(f"unknown environment {name!r}; {hint}")
    return packages[name]


def environment_class(name: str) -> type[ToolEnvironment]:
    """Return the class of an environment, by its name or as module:Class. Raises ValueError, for an unknown name with
    the nearest known one."""
    if ":" in name:
        return _class_at(*name.split(":", 1))
    if (game := game_of(name)) is not None:
        return environment_of(game)
    return module_of(name).Environment


def _class_at(module: str, name: str) -> type[ToolEnvironment]:
    """Return an installed class. Raises ValueError if there is none, or it is no complete environment."""
    whole = f"environment {module}:{name}"
    if not module or not name:
        raise ValueError(f"{whole} is no module:Class")
    try:
        found = getattr(importlib.import_module(module), name, None)
    except ModuleNotFoundError as error:
        raise ValueError(f"{whole}: {module} cannot be imported ({error}); install its package") from None
    except Exception as error:  # whatever its code raises, or that of a package that it imports
        package, raised = failed_import(error) or (module, error)
        raise ValueError(f"{whole}: importing {package} fails ({type(raised).__name__}: {raised}); mend it") from error
    if not isinstance(found, type):
        raise ValueError(f"{whole}: {module} has no class {name!r}")
    if not issubclass(found, ToolEnvironment):
        raise ValueError(f"{whole}: it is no subclass of apprentice.envs.base.ToolEnvironment")
    missing = [each for each in ("Settings", "version") if not hasattr(found, each)]
    missing += sorted(getattr(found, "__abstractmethods__", ()))
    if missing:
        raise ValueError(f"{whole}: it lacks {', '.join(missing)}")
    return found


def check_extra(name: str) -> None:
    """Raise ExtraMissing, with the extra to install, if the environment's server cannot run here."""
    extra, module = environment_class(name).extra
    if extra and not _is_installed(module):
        raise ExtraMissing(
            f"the server of {name} needs {module}, which is not installed: pip install 'openenv-apprentice[{extra}]'"
        )


def part_of(name: str, part: str) -> str:
    """Return the module with an environment's `server` or `policy`; empty if it has none.

    A game in one file is its own server. A script, `check` and `call`, may be in the module of the class. Otherwise the
    package has them: `policy`; `game`, in the package or in its folder `server`.
    """
    package, is_game = package_of(name), game_of(name) is not None
    own = importlib.import_module(package) if is_game else module_of(name)
    if is_game if part == "server" else hasattr(own, "call"):
        return own.__name__
    beside = ("policy",) if part == "policy" else ("game", f"{part}.game")
    return next((each for at in beside if package and _is_installed(each := f"{package}.{at}")), "")


def check_server(name: str) -> None:
    """Raise NoServer, ExtraMissing if the environment cannot be served here."""
    check_extra(name)
    if not part_of(name, "server"):
        if name == "multi":
            raise NoServer(f"{name}: a mixture has no server of its own; serve its environments")
        raise NoServer(f"{name} has no server here: set server.url or server.image")


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # its parent package is missing
        return False


def server_app(name: str, max_sessions: int) -> "FastAPI":
    """Return the environment's server, for at most `max_sessions` concurrent episodes.

    Raises ValueError, ExtraMissing, NoServer.
    """
    from openenv.core.env_server.http_server import create_app

    check_server(name)
    game = server_class(name)
    action, observation = server_types(game)
    sessions = max_sessions if game.SUPPORTS_CONCURRENT_SESSIONS else 1  # else OpenEnv refuses to serve it
    return create_app(game, action, observation, env_name=name, max_concurrent_envs=sessions)


def server_types(server: "type[Environment[Any, Any, Any]]") -> tuple[Any, Any]:
    """Return the classes of a server's actions and observations."""
    bases = (base for each in server.__mro__ for base in get_original_bases(each))
    action, observation, _ = next(types for base in bases if len(types := get_args(base)) == 3)
    return action, observation


def server_class(name: str) -> "type[Environment[Any, Any, Any]]":
    """Return the class of the server that is an OpenEnv environment, or one that serves a game in one file."""
    from openenv.core.env_server.interfaces import Environment

    if (game := game_of(name)) is not None:
        from apprentice.envs.game_server import server_of

        return server_of(game)
    module = importlib.import_module(part_of(name, "server"))
    defined = [each for each in vars(module).values() if isinstance(each, type) and each.__module__ == module.__name__]
    return next(each for each in defined if issubclass(each, Environment))


LOOKING = "looking"
"""A context of validation: nothing will be played, so an environment's settings are taken as they are. To check them
can import its whole package."""


class EnvironmentSpec(BaseModel):
    """The task to learn. Together with a seed it identifies one question, the same on every server."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    name: str = ANY
    """An environment of this package, an entry point of another one (`apprentice env init`), or an installed class as
    module:Class. Without a name it is whatever the OpenEnv server at `server.url` plays."""
    path: FilePath | None = Field(default=None, exclude_if=lambda path: path is None)
    """In place of a name: the file or folder of an environment that is not installed, as seen from the recipe's
    file. It is no part of any key; its code is."""
    settings: dict[str, Any] = {}
    """The environment's own settings, validated by its `Settings` model. They may also stand beside the name."""
    say: TextCall | None = Field(default=None, exclude_if=lambda say: say is None)
    """Have a message without a call end the episode and be scored: the tool and its argument that the text is sent as,
    such as {tool: respond, argument: message}. For servers of others; an environment of your own has a method `say`.
    Of a mixture it is that of every part."""

    version: str = ""
    """The version of the environment, part of every key. Filled in; a recipe with another version is rejected."""

    code: str = ""
    """Digest of its Python sources (class, script, server), part of every key. Filled in; a spec with
    another digest was made by other code and is rejected."""

    revision: str = ""
    """Revision of the server where it does not run the installed code, such as a Space's commit. Part of every key:
    another revision invalidates the cache."""

    @model_validator(mode="before")
    @classmethod
    def _knows_its_code(cls, given: Any) -> Any:
        if isinstance(given, dict) and isinstance(path := given.get("path"), str | Path):
            name, folder = add_folder(Path(path))
            if given.get("name", name) != name:
                raise ValueError(f"{path} has the environment {name!r}, not {given['name']!r}: name one of both")
            given = given | {"name": name, "path": folder}
        if isinstance(given, dict) and isinstance(name := given.get("name", ANY), str):
            known = environment_class(name)
            settings = _own_settings(given, known)
            given = {field: each for field, each in given.items() if field not in settings} | {"settings": settings}
            return {"version": known.version_under(settings), "code": known.code_under(settings)} | given
        return given

    @model_validator(mode="after")
    def _settings_fit(self, info: ValidationInfo) -> "EnvironmentSpec":
        known = environment_class(self.name)
        if info.context != LOOKING:
            known.Settings.model_validate(self.settings)
        if self.version != (installed := known.version_under(self.settings)):
            raise ValueError(f"this names version {self.version!r} of {self.name}; installed is {installed!r}")
        if self.code != (here := known.code_under(self.settings)):
            raise ValueError(f"this names the code {self.code!r} of {self.name}; installed is {here!r}")
        return self

    def in_key(self) -> dict[str, Any]:
        """Return what enters a key and a record: all but where its folder is."""
        return self.model_dump(mode="json", exclude={"path"})

    def __str__(self) -> str:
        """Return its name for people, such as "reasoning_gym chain_sum"."""
        texts = [value for name, value in self.settings.items() if isinstance(value, str) and name != "instructions"]
        details = [*texts, *self.mixed]
        return " ".join([self.name, *details])

    @property
    def mixed(self) -> dict[str, "EnvironmentSpec"]:
        """The environments of a mixture by label; empty if this is not a mixture."""
        parts = self.settings.get("parts", {})
        return {
            label: EnvironmentSpec(name=part["name"], settings=part.get("settings", {}), say=self.say)
            for label, part in sorted(parts.items())
        }

    def differs_in_rewards_only(self, earlier: dict[str, Any]) -> bool:
        """Return whether `earlier`, a spec as JSON, is this task under another version of its rewards alone: 1 and 1.1,
        but not 1 and 2. Code that changed under the same version says nothing, since it may ask otherwise."""
        then = str(earlier.get("version"))
        return self.is_task_of(earlier) and then != self.version and _asks(then) == _asks(self.version)

    def is_task_of(self, earlier: dict[str, Any]) -> bool:
        """Return whether `earlier`, a spec as JSON, has the same name and settings, whatever code it was played by."""
        return (earlier.get("name"), earlier.get("settings")) == (self.name, self.settings)

    def played_by(self, part: Player) -> str:
        """Return name and version of the environment that played an episode, after its label in a mixture."""
        if not part.label:
            return f"{self.name} {self.version}"
        own = self.mixed[part.label]
        return f"{part.label}: {own.name} {own.version}"

    def make(self, session: Session | None = None) -> Player:
        """Return a player over `session`; without one only its prompt and tools are available."""
        cls = environment_class(self.name)
        settings: Any = cls.Settings.model_validate(self.settings)
        if not self.mixed:
            return Player(class_of(cls, settings)(settings, session), text_call=self.say)
        assert session is None or isinstance(session, SessionOfParts)
        parts = {label: part.make(session and session.part(part.name)) for label, part in self.mixed.items()}
        return Mixture(cls(settings), parts, [part.weight for part in settings.parts.values()])

    @property
    def questions(self) -> int | None:
        """How many questions there are, whatever the seed; None where every seed may have its own."""
        return environment_class(self.name).questions_under(self.settings)

    def repeats(self, seeds: Iterable[int]) -> bool:
        """Return whether one of the seeds asks what a smaller one asks, since there are so few questions."""
        return self.questions is not None and any(seed >= self.questions for seed in seeds)

    def unscaled(self) -> "EnvironmentSpec":
        """Return the task without how its rewards are scaled, on which no question and no reply depends."""
        if "scale" not in self.settings or "scale" not in environment_class(self.name).Settings.model_fields:
            return self
        return self.with_settings({name: each for name, each in self.settings.items() if name != "scale"})

    def knows_all(self) -> bool:
        """Return whether nothing has to be read from its server before a run begins."""
        return all(setting in self.settings for setting in environment_class(self.name).discovered)

    def with_settings(self, settings: dict[str, Any]) -> "EnvironmentSpec":
        """Return the same environment under other settings."""
        given = self.model_dump(exclude={"version", "code"}) | {"settings": settings}
        return EnvironmentSpec.model_validate(given)


def _own_settings(given: dict[str, Any], known: type[ToolEnvironment]) -> dict[str, Any]:
    """Return an environment's settings, with those that stand beside its name, and with the rows of a file of tasks."""
    settings = given.get("settings") or {}
    if not isinstance(settings, dict):
        return settings
    fields = known.Settings.model_fields.keys() - EnvironmentSpec.model_fields.keys()
    settings = {name: each for name, each in given.items() if name in fields} | settings
    return settings | ({"tasks": rows_of(settings["tasks"])} if "tasks" in fields & settings.keys() else {})


def _asks(version: str) -> str:
    """Return the version without what numbers its rewards: 1 of 1.1; of a mixture, of each part."""
    return re.sub(r"(?<=\d)\.\d+\b", "", version)


def policy_of(environment: str) -> Any:
    """Return the module of its script: `check(settings)` and `call(settings, messages, error_rate)`.

    It may have `work(settings, messages, error_rate)`, which also returns its working. `call` also gets the question's
    seed if the module sets TAKES_SEED. Raises ValueError if it has none.
    """
    if not (module := part_of(environment, "policy")):
        raise ValueError(f"{environment} has no scripted teacher: name a model in `teacher`")
    return importlib.import_module(module)


NextTurn = tuple[str, dict[str, Any]] | str
"""What a script says next: a tool and its arguments, or the last text of the episode."""


def next_work(
    environment: str, settings: dict[str, Any], messages: list[dict[str, Any]], error_rate: float, seed: int | None
) -> tuple[str, NextTurn]:
    """Return the script's working, and the call that it leads to; empty where the script cannot show how it works.

    Its mistakes are made within the working. Raises ValueError for an unknown question.
    """
    work = getattr(policy_of(environment), "work", None)
    found = work(settings, messages, error_rate) if work else None
    return found or ("", next_call(environment, settings, messages, error_rate, seed))


def next_call(
    environment: str, settings: dict[str, Any], messages: list[dict[str, Any]], error_rate: float, seed: int | None
) -> NextTurn:
    """Return the script's next call, or its last text. Raises ValueError for an unknown question."""
    policy = policy_of(environment)
    known = {"seed": seed} if getattr(policy, "TAKES_SEED", False) else {}
    return policy.call(settings, messages, error_rate, **known)
