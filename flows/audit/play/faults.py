"""Where the code of an environment's author fails: the file, the line and the method.

In: an exception that it raised, or the calls of an episode that its server could not play. Out: a `Fault`.
Why: a server sends the text of an exception alone. So the episode is played again in this process, on the server's own
class, and the traceback says where.
"""

import inspect
import json
import linecache
import re
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

from pydantic import ValidationError

from apprentice.envs.base import tool_names
from apprentice.envs.catalog import (
    ADAPTERS,
    OLD,
    EnvironmentSpec,
    ExtraMissing,
    NoServer,
    check_server,
    environment_class,
    game_of,
    module_of,
    next_call,
    policy_of,
    server_class,
    server_types,
)
from apprentice.envs.folders import package_at
from apprentice.envs.game import SAY
from apprentice.envs.player import Player
from apprentice.envs.tools import Tool
from apprentice.envs.wire.reply import BadReply, Reply, one_line
from apprentice.tasks.episodes.episode import Call, Episode, problems, turn_of

HELPERS = Path(__file__).parents[3] / "envs"
"""What authors import of this project."""
HANGS = 5.0
"""Seconds after which code that does not end is left to itself."""
LONGEST = 300
"""Characters that are shown of an exception."""


class Fault(NamedTuple):
    """A place in the author's code, and what is wrong there."""

    file: Path
    line: int
    method: str
    """Empty at the top of the file."""
    said: str

    def __str__(self) -> str:
        here = Path.cwd()
        file = self.file.relative_to(here) if self.file.is_relative_to(here) else self.file
        return f"{file}, line {self.line}{f', in {self.method}' if self.method else ''}: {self.said}"


class ScriptFault(ValueError):
    """The script fails on a question, or what it returns is no call.

    Attributes:
        fault: Where.
    """

    def __init__(self, fault: Fault):
        super().__init__(str(fault))
        self.fault = fault


def files_of(name: str) -> tuple[Path, ...]:
    """Return the file of a game in one file, or the folder of an environment; empty for an adapter, whose environments
    others have written."""
    if OLD.get(name, name) in ADAPTERS:
        return ()
    if (game := game_of(name)) is not None:
        return (Path(inspect.getfile(game)).resolve(),)
    if ":" in name:
        return (Path(inspect.getfile(environment_class(name))).resolve(),)
    module = module_of(name)
    own = Path(str(module.__file__)).resolve()
    return (own.parent if own.name == "env.py" else own,)


def files_at(given: str) -> tuple[Path, ...]:
    """Return the file or the folder of an environment that perhaps cannot be imported: at a path, or of a name."""
    try:
        return (package_at(Path(given)),) if Path(given).exists() else files_of(given)
    except Exception:  # it fails again, and is known by its traceback already
        return ()


def fault_of(error: BaseException, files: Sequence[Path]) -> Fault | None:
    """Return where in the files an exception comes from; None if it does not come from them."""
    for each in _chain(error):
        said = said_of(each)
        if isinstance(each, SyntaxError) and each.filename and _is_in(each.filename, files):
            return Fault(Path(each.filename).resolve(), each.lineno or 1, "", said)
        own = [place for place in traceback.walk_tb(each.__traceback__) if _is_in(place[0].f_code.co_filename, files)]
        if own:
            first, (last, line) = own[0][0].f_code.co_qualname, own[-1]
            method = "" if first == "<module>" else first.partition(".<locals>")[0]
            return Fault(Path(last.f_code.co_filename).resolve(), line, method, said)
    return None


def said_of(error: BaseException) -> str:
    """Return an exception on one line; of pydantic's errors the first field and its value."""
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False, include_context=False)[0]
        where = ".".join(map(str, first["loc"][:1]))
        return one_line(f"{where} is {first.get('input')!r}: {first['msg']}", LONGEST)
    return one_line(f"{type(error).__name__}: {error}" if str(error) else type(error).__name__, LONGEST)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen: list[BaseException] = []
    while error is not None and error not in seen:
        seen.append(error)
        yield error
        error = error.__cause__ or error.__context__


def _is_in(file: str, files: Sequence[Path]) -> bool:
    return any(Path(file).resolve().is_relative_to(each) for each in files)


def fault_at(given: Any, said: str, name: str = "") -> Fault:
    """Return a fault of a function or a class: in the line where it is defined, or its attribute `name` is."""
    given = inspect.unwrap(given)
    try:
        file, (lines, line) = Path(inspect.getfile(given)).resolve(), inspect.getsourcelines(given)
    except (OSError, TypeError):  # it was made at run time
        return Fault(Path(inspect.getfile(type(given))), 1, getattr(given, "__qualname__", ""), said)
    shown = next((place for place, text in enumerate(lines) if re.match(rf"\s*(def )?{name}\b", text)), 0)
    return Fault(file, line + (shown if name else 0), f"{given.__qualname__}{f'.{name}' if name else ''}", said)


def is_deliberate(error: BaseException, files: Sequence[Path]) -> bool:
    """Whether an exception is a ValueError that the author raises, or a helper of this project: an answer, no fault."""
    if not isinstance(error, ValueError) or isinstance(error, ValidationError):
        return False
    places = [*traceback.walk_tb(error.__traceback__)]
    if not places or not _is_in(file := places[-1][0].f_code.co_filename, [*files, HELPERS]):
        return False
    return linecache.getline(file, places[-1][1]).strip().startswith("raise")


class LocalSession:
    """Plays on a server's class in this process, as a `Session` does over the wire. Raises whatever it raises."""

    def __init__(self, server: Callable[[], Any], action: Any):
        self._server, self._action = server, action
        self._playing: Any = None

    def reset(self, **question: Any) -> Reply:
        self._playing = self._server()
        return self._reply(self._playing.reset(**question))

    def step(self, action: dict[str, Any]) -> Reply:
        return self._reply(self._playing.step(self._action.model_validate(action)))

    def state(self) -> dict[str, Any]:
        return self._playing.state.model_dump()

    def renew(self) -> None:
        """Nothing: every reset begins anew."""

    def close(self) -> None:
        """Nothing: there is no connection."""

    @staticmethod
    def _reply(seen: Any) -> Reply:
        from openenv.core.env_server.serialization import serialize_observation

        return Reply(**serialize_observation(seen))


def fault_in_server(spec: EnvironmentSpec, seed: int, calls: Iterable[Call] = ()) -> Fault | None:
    """Play an episode in this process and return where the server or a tool fails; None if nothing does within
    `HANGS` seconds, or if the server's code is not here. A ValueError of a tool is no fault, nor is one that `ask`
    raises itself."""
    found: list[Fault | None] = []
    playing = threading.Thread(target=lambda: found.append(_played_here(spec, seed, [*calls])), daemon=True)
    playing.start()
    playing.join(HANGS)
    return found[0] if found else None


def _played_here(spec: EnvironmentSpec, seed: int, calls: list[Call]) -> Fault | None:
    files, tool = files_of(spec.name), "ask"
    try:
        check_server(spec.name)
    except (NoServer, ExtraMissing):
        return None
    try:
        server = server_class(spec.name)
        session: Any = LocalSession(server, server_types(server)[0])
        player = spec.make(session)
        player.ask(seed)
        for tool, arguments in calls:
            if not player.done and _fits(player.tools, tool, arguments):
                try:
                    player.act(tool, arguments)
                except (ValueError, BadReply) as error:
                    if isinstance(error, ValidationError):
                        raise
    except Exception as error:  # whatever its author's code raises
        if tool == "ask" and is_deliberate(error, files):
            return None
        method = getattr(game_of(spec.name), tool, None) if files else None
        return fault_of(error, files) or (fault_at(method, said_of(error)) if method else None)
    return None


def fault_in_schema(player: Player, files: Sequence[Path]) -> Fault | None:
    """Return the tool of a player's class that has no schema, in the author's files; None if none is known."""
    for name in tool_names(type(player.environment)):
        method = getattr(player.environment, name)
        try:
            Tool.of(method)
        except Exception as error:  # whatever transformers raises on it
            fault = fault_at(method, " ".join(str(error).split())[:LONGEST])
            return fault if _is_in(str(fault.file), files) else None
    return None


def _fits(tools: Sequence[Any], name: str, arguments: dict[str, Any]) -> bool:
    try:
        return any(inspect.signature(each.call).bind(**arguments) is not None for each in tools if each.name == name)
    except TypeError:  # the model is told so
        return False


def scripted_call(spec: EnvironmentSpec, episode: Episode, error_rate: float = 0.0) -> Call:
    """Return the script's next call.

    Raises ValueError if there is no script, or it does not know the question; ScriptFault, which is one, if it fails or
    what it returns is no call of a tool.
    """
    policy, files = policy_of(spec.name), files_of(spec.name)
    try:
        given = next_call(spec.name, spec.settings, episode.messages, error_rate, episode.seed)
    except Exception as error:  # whatever its author's code raises
        if is_deliberate(error, files) or not files:
            raise
        raise ScriptFault(fault_of(error, files) or script_fault(policy, said_of(error))) from error
    if isinstance(given, str) and episode.player.takes_text:
        return SAY, {"text": given}
    if wrong := _no_call(given, episode.tools):
        raise ScriptFault(script_fault(policy, wrong))
    return cast(Call, given)


def script_fault(policy: Any, said: str, name: str = "call") -> Fault:
    """Return a fault of a script's function, which may be missing."""
    own = getattr(policy, name, None)
    return fault_at(own, said) if callable(own) else Fault(Path(policy.__file__).resolve(), 1, name, said)


def _no_call(given: Any, tools: list[dict[str, Any]]) -> str:
    """Return why what a script returned is no call of a tool; empty if it is one."""
    shown = one_line(repr(given), 100)
    if not (isinstance(given, tuple | list) and len(given) == 2 and isinstance(given[0], str)):
        return f"it returns {shown}, not a tool's name and its arguments"
    name, arguments = given
    if not isinstance(arguments, dict):
        return f"it returns {shown}, whose arguments are no dict"
    try:
        json.dumps(arguments, allow_nan=False)
    except (TypeError, ValueError) as error:
        return f"it returns {shown}, whose arguments are no JSON: {error}"
    if not (found := problems(turn_of(name, arguments), tools)):
        return ""
    if found == ["unknown tool"]:
        return f"it calls {name}, and the tools are {', '.join(tool['function']['name'] for tool in tools)}"
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import best_match

    schema = next(tool["function"]["parameters"] for tool in tools if tool["function"]["name"] == name)
    error = best_match(Draft202012Validator(schema | {"additionalProperties": False}).iter_errors(arguments))
    off_schema = one_line(error.message, 200) if error else "arguments off the schema"
    return f"it calls {name} with {one_line(json.dumps(arguments), 100)}: {off_schema}"
