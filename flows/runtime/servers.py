"""What a run opens on this machine: its servers, its store, its report's folder.

In: a recipe. Out: URLs, a store, a folder. A server starts when a stage first needs it and stops when the run ends: a
URL in the recipe is used unchanged, an image becomes a container, anything else a child process. The folder is removed
if the run fails. The server of a command, such as `apprentice view`, ends with Ctrl-C. Also read before anything is
bought: the settings that only a server knows, such as the tools of an MCP environment, and whether this machine can
train what the recipe asks for.
"""

import json
import os
import shutil
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from apprentice.envs.catalog import EnvironmentSpec, ExtraMissing, NoServer, check_server, environment_class
from apprentice.envs.serving.command import command_server
from apprentice.envs.serving.container import PORT, USER, ContainerFailed, container
from apprentice.envs.serving.process import local_server, server_settings
from apprentice.envs.wire.metadata import why_foreign
from apprentice.envs.wire.reply import BadReply
from apprentice.envs.wire.server import EnvironmentServer, ServerFailed
from apprentice.envs.wire.session import Refused, Session, SessionLost
from apprentice.envs.wire.waiting import wait_for
from apprentice.flows.recipe.recipe import Recipe
from apprentice.flows.recipe.recipe_yaml import recipe_text
from apprentice.tasks.artifacts.hub import HubStore
from apprentice.tasks.artifacts.local import LocalStore
from apprentice.tasks.cards.card import write_card
from apprentice.tasks.files.owners import whose
from apprentice.tasks.reporting import announce
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.settings.training import TrainerSpec


class RunServers(ExitStack):
    """A context manager that stops the servers it started.

    Args:
        holds_device: Whether this process holds a GPU: outages are then waited for only half of the server's `grace`;
            the other half is for saving.
    """

    def __init__(self, recipe: Recipe, holds_device: bool = False):
        super().__init__()
        self._recipe = recipe
        self._holds_device = holds_device
        self._local: dict[str, list[str]] = {}

    def environment(self, name: str) -> EnvironmentServer:
        """Return the server of one of the recipe's environments. Raises Stop if it cannot be started."""
        server = self._recipe.server_of(name)
        if not (mixed := self._recipe.mixed_in(name)):
            return self._running(name, server)
        like = server.model_copy(update={"parts": {}})
        parts = {part: self._running(part, server.parts.get(part, like)) for part in mixed}
        return server.model_copy(update={"url": ", ".join(part.url for part in parts.values()), "parts": parts})

    def _running(self, name: str, server: EnvironmentServer) -> EnvironmentServer:
        if not server.url:
            if name not in self._local:
                recipe = self._recipe
                least = max(recipe.server.sessions, recipe.evaluate.batch_size, recipe.training_sessions())
                self._local[name] = self.enter_context(environment_server(name, server, 2 * least, announce.say))
            server = server.at(*self._local[name])
        return self.with_short_timeouts(server) if self._holds_device else server

    @staticmethod
    def with_short_timeouts(server: EnvironmentServer) -> EnvironmentServer:
        """Return the server with timeouts that take half of `grace`, even if it hangs; the rest is for saving."""
        timeout = min(server.message_timeout, server.grace / 4)
        return server.model_copy(update={"patience": server.grace / 4, "message_timeout": timeout})

    def teacher(self) -> str | None:
        if self._recipe.is_scripted:
            return self._scripted_teacher
        return self._recipe.teacher.base_url if self._recipe.teacher else None

    @cached_property
    def _scripted_teacher(self) -> str:
        task, teacher = self._recipe.environment, self._recipe.teacher
        assert teacher is not None
        url = self.enter_context(
            local_server(
                "apprentice.envs.serving.scripted_teacher",
                *("--environment", task.name, "--settings", json.dumps(task.settings)),
                *("--error-rate", str(teacher.scripted_error_rate)),
            )
        )
        return f"{url}/v1"


@contextmanager
def environment_server(
    name: str, server: EnvironmentServer, sessions: int, say: Callable[[str], None]
) -> Iterator[list[str]]:
    """Start a server with this many sessions and yield its URL, or those of its copies. Raises Stop if it cannot be
    started here."""
    if server.command:
        say(f"This runs `{server.command}`{f', {server.copies} times' if server.copies > 1 else ''}.")
        with ExitStack() as started:
            try:
                starting = [command_server(server.command, server.patience) for _ in range(server.copies)]
                urls = [started.enter_context(each) for each in starting]
            except ServerFailed as failed:
                raise Stop(f"The environment's server failed: {failed}.", "Correct server.command.") from failed
            yield urls
        return
    if server.image:
        say(f"Starting a container of `{server.image}` for {name}.")
        try:
            with container(server.image, sessions, server.patience) as url:
                yield [url]
        except ContainerFailed as failed:
            raise Stop(
                f"The environment's container failed: {failed}.",
                f"See its output: docker run --rm --user {USER} --publish 127.0.0.1:{PORT}:{PORT} {server.image}. "
                "Or set server.url or server.local.",
            ) from failed
        return
    try:
        check_server(name)
    except NoServer as none:
        raise Stop(f"{none}.", "Name a server that runs: server: {url: https://…}.") from None
    except ExtraMissing as missing:
        raise Stop(f"The environment cannot run here: {missing}", "Or set server.url or server.image.") from None
    with local_server("apprentice.envs.serving.serve", name, "--max-sessions", str(sessions)) as url:
        yield [url]


def listening(port: int, remedy: str = "Choose another one, or --port 0 for a free one.") -> socket.socket:
    """Return a socket of 127.0.0.1. Raises Stop where the port is taken."""
    try:
        return socket.create_server(("127.0.0.1", port), backlog=1024)
    except OSError as error:
        raise Stop(f"Port {port} is not available: {error.strerror}.", remedy) from error


def serve_on(listener: socket.socket, make: Callable[[], Any]) -> None:
    """Make an ASGI application and serve it, until Ctrl-C."""
    with suppress(KeyboardInterrupt):
        import uvicorn

        uvicorn.Server(server_settings(make())).run(sockets=[listener])


def open_store(recipe: Recipe, holds_device: bool = False, hub_needed: bool = True) -> LocalStore:
    """Return the recipe's store.

    Args:
        holds_device: Whether this process holds a GPU: it then waits for the Hub only for a quarter of `grace`.
        hub_needed: Whether other machines need the artifacts. If not, an unreachable Hub does not stop the run.
    """
    spec, hub = recipe.store, recipe.store.hub
    if hub is None:
        return LocalStore(spec.path, recipe.name, license=spec.license, describe=write_card)
    patience = recipe.server.grace / 4 if holds_device else hub.patience
    return HubStore(
        *(spec.path, recipe.name, hub.namespace, hub.private, patience, hub_needed),
        license=spec.license,
        describe=write_card,
    )


def check_runs(runs: Path) -> None:
    """Raise Stop if no folder can be created there; creates nothing."""
    there = next(each for each in (runs.absolute(), *runs.absolute().parents) if each.exists())
    if not there.is_dir():
        raise _impossible(runs, f"{there} is a file")
    if not os.access(there, os.W_OK | os.X_OK):
        raise _impossible(runs, f"it cannot be written ({whose(there)})")


@contextmanager
def run_folder(runs: Path, recipe: Recipe) -> Iterator[Path]:
    """Yield a new folder with the run's recipe; remove it if the block raises."""
    check_runs(runs)
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S-%f")[:-3]
    folder = runs.absolute() / f"{recipe.name}-seed{recipe.seed}-{stamp}"
    try:
        folder.mkdir(parents=True)
        (folder / "recipe.yaml").write_text(recipe_text(recipe.model_dump(mode="json")))
    except OSError as error:
        raise _impossible(runs, error.strerror or str(error)) from error
    try:
        yield folder
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _impossible(runs: Path, why: str) -> Stop:
    return Stop(f"The run's folder cannot be created in {runs}: {why}.", "Choose another folder with --runs.")


def with_discovered_settings(recipe: Recipe) -> Recipe:
    """Return the recipe with complete settings of its environments and its levels. Raises Stop."""

    def completed_levels(levels: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [completed(recipe.environment.with_settings(each), recipe.server).settings for each in levels]

    trainings = {name: recipe.training(name) for name in recipe.trains_on}
    regressions = [
        each.model_copy(update={"environment": completed(each.environment, recipe.server_of(each.environment.name))})
        for each in recipe.guards
    ]
    environment = completed(recipe.environment, recipe.server)
    changed = dict(
        environment=environment,
        evaluate=recipe.evaluate.sampled_where_repeated(environment.questions),
        **{name: spec.with_levels(completed_levels) for name, spec in trainings.items() if spec},
        guards=regressions,
        improve=recipe.improve.model_copy(update={"ladder": completed_levels(recipe.improve.ladder)}),
    )
    return recipe.model_copy(update=changed)


def completed(spec: EnvironmentSpec, server: EnvironmentServer) -> EnvironmentSpec:
    """Return the environment with the settings that its server reports. Raises Stop."""
    if spec.mixed:
        like = server.model_copy(update={"parts": {}})
        parts = {
            label: given | {"settings": completed(spec.mixed[label], server.parts.get(given["name"], like)).settings}
            for label, given in spec.settings["parts"].items()
            if not spec.mixed[label].knows_all()
        }
        return spec.with_settings(spec.settings | {"parts": spec.settings["parts"] | parts}) if parts else spec
    if spec.knows_all():
        return spec
    if server.url:
        return _from_server(spec, server)
    with environment_server(spec.name, server, sessions=1, say=announce.say) as urls:
        return _from_server(spec, server.at(*urls))


def _from_server(spec: EnvironmentSpec, server: EnvironmentServer) -> EnvironmentSpec:
    if foreign := wait_for(why_foreign(server)):
        raise Stop(f"{server.url} cannot be played: {foreign.reason}.", foreign.remedy)
    with closing(Session(server.each()[0])) as session:
        try:
            settings = environment_class(spec.name).completed(spec.settings, session)
        except (ValueError, Refused, BadReply, SessionLost) as error:
            cause = " ".join(str(error).split())[:400]
            raise Stop(
                f"{server.url} does not tell what {spec.name} needs: {cause}.",
                "Check its URL and environment.settings; docs/environments.md has both.",
            ) from error
    return spec.with_settings(settings)


def check_hardware(trainings: dict[str, TrainerSpec]) -> None:
    """Check only trainings that need more than a CPU, because importing torch takes seconds. Raises Stop.

    Args:
        trainings: Their sections by name.
    """
    if not any(spec.needs_packages for spec in trainings.values()):
        return
    from apprentice.tasks.models.memory import this_machine
    from apprentice.tasks.trainings import training_of

    machine = this_machine()
    for name, spec in trainings.items():
        training_of(name).check_machine(spec, machine._replace(processes=spec.processes))
