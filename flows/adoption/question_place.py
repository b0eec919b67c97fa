"""Where a server that somebody else published says its question, and what of a reset no model reads.

In: its first resets. Out: a setting of its recipe, with what it follows from; Stop where a player would not know the
task.
"""

from collections.abc import Sequence
from typing import Any

from apprentice.envs.catalog import EnvironmentSpec
from apprentice.envs.openenv.discovered import NoTools
from apprentice.envs.openenv.env import Environment
from apprentice.envs.openenv.observation import LONGEST, NAMES, STATE, hidden, whole
from apprentice.envs.wire.metadata import schema_fails
from apprentice.envs.wire.passing import difference, leaves
from apprentice.envs.wire.reply import BadReply, one_line
from apprentice.envs.wire.server import EnvironmentServer
from apprentice.flows.adoption.first_resets import MENDED, QUESTION, FirstReset
from apprentice.flows.audit.play.recorded import Recorded
from apprentice.flows.recipe.adopted_recipe import DerivedSetting
from apprentice.tasks.reporting.errors import Stop


def question_at(
    server: EnvironmentServer, starts: Sequence[FirstReset], given: dict[str, Any]
) -> dict[str, DerivedSetting]:
    """Which parts of a reset are the question, where the environment cannot tell by itself."""
    first, _, other = starts
    differ = _differing(*starts)
    session = Recorded(server)
    try:
        Environment.completed(given, session)
    except NoTools as none:
        if schema_fails(server):
            raise Stop(
                f"{server.url} cannot be trained on as it is: its /schema fails in its own code.", MENDED
            ) from none
        said = one_line(whole(first.reply.observation), 200) or "nothing"
        raise Stop(
            f"{server.url} cannot be trained on as it is: {none}; its reset says {said!r}.",
            "If a reset needs more than a seed, say it: --set reset='{scenario: …}'. Else its author has to mend it.",
        ) from none
    except (BadReply, ValueError):
        pass
    else:
        paths = [path for path in differ if path.startswith(STATE) and QUESTION.search(path.rpartition(".")[2])]
        if not paths or difference(first.reply, other.reply):
            return {}
        why = "what a reset shows is the same under every seed, and this is not"
        return {"question": DerivedSetting(paths[:2], why)}
    finally:
        session.close()
    observed = [(path, each) for path, each in leaves(first.reply.observation) if _says(path, each)]
    known = [(f"{STATE}{path}", each) for path, each in first.texts.items() if _says(path, each)]
    found = observed or known
    likely = [path for path, _ in found if QUESTION.search(path.rpartition(".")[2])] or [path for path, _ in found[:1]]
    likely = likely[:2]
    if likely and not any(path in differ for path in likely):  # what follows the seed is a number, or in another text
        others = (
            path if path in dict(found) else path.partition(".")[0] for path in differ if not path.startswith(STATE)
        )
        likely += [*dict.fromkeys(others)][:3]
    if not likely:
        raise Stop(
            f"{server.url} cannot be trained on: neither a reset's observation nor its state holds a text, so a player "
            "would not know the task (openenv-core before 0.10 leaves the observation's metadata out).",
            "Ask its author to put the question into the observation's own fields.",
        )
    places = ", ".join(path for path, _ in found)
    return {"question": DerivedSetting(likely, f"the texts of a reset are at {places}")}


def _differing(*starts: FirstReset) -> list[str]:
    """Paths of a reset's observation and of the state's texts whose values follow the seed."""
    one, same, another = (
        dict(leaves(each.reply.observation)) | {f"{STATE}{path}": text for path, text in each.texts.items()}
        for each in starts
    )
    return [path for path, value in one.items() if value == same.get(path) != another.get(path) and _is_own(path)]


def _is_own(path: str) -> bool:
    return not NAMES.search(path) and "metadata" not in path


def _says(path: str, value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip()) and _is_own(path)


def left_out(spec: EnvironmentSpec, first: FirstReset) -> str:
    """What of a reset no model reads, such as a picture; nothing where the recipe says what is shown."""
    observation = first.reply.observation
    found = [] if spec.settings.get("question") else hidden(observation)
    long = [path for path in found if _says(path, observation.get(path)) and " " in observation[path].strip()]
    raw = [path for path in found if path not in long]
    said = f" Not shown, as it is no text: {', '.join(raw[:4])}." if raw else ""
    if long:
        said += (
            f" Not shown unless `question` names it, as it is longer than {LONGEST:,} characters: {', '.join(long)}."
        )
    return said
