"""`apprentice serve`: an OpenAI-compatible endpoint of a model on this machine, until Ctrl-C.

In: a recipe's name, whose champion is followed, or a model's key; an engine. Out: a server on 127.0.0.1.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from apprentice.flows.recipe.loading import load_recipe
from apprentice.flows.recipe.location import find_recipe
from apprentice.flows.runtime.servers import listening, open_store, serve_on
from apprentice.flows.serving.backends import Backends
from apprentice.flows.serving.proxy import STUDENT, Proxy
from apprentice.flows.serving.request_log import RequestLog
from apprentice.flows.serving.target import Target, model_of_key, only_project
from apprentice.tasks.artifacts.local import LocalStore
from apprentice.tasks.episodes.thinking import thinking_at
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.serving.engine import EngineFailed, EngineName, engine_for
from apprentice.tasks.settings.endpoint import LocalEndpoint
from apprentice.tasks.settings.spec import ThinkingSpec


def target_of(
    what: str | None,
    root: Path,
    hub: str | None,
    overrides: list[str],
    engine: EngineName | None,
    sessions: int,
    context: int,
) -> Target:
    """Return what to serve. Raises Stop.

    Args:
        what: A recipe, by file or name, or a model's key; None for the only project that has a champion.
        root: The folder of artifacts, where no recipe names it.
        hub: The namespace on the Hub that has what the folder does not.
        overrides: Of the recipe.
    """
    chosen, pinned = engine_for(engine), None
    if what is None:
        store = LocalStore(root, only_project(root))
    elif what.endswith((".yaml", ".yml")) or find_recipe(Path(what)):
        store = open_store(load_recipe(Path(what), overrides), hub_needed=False)
    else:
        store, pinned = model_of_key(what, root, hub)
    return Target(store, pinned, chosen, sessions, context)


def serve_target(target: Target, port: int, most: int, log: RequestLog | None) -> None:
    """Serve until Ctrl-C. Raises Stop where the port is taken, or the engine does not load the model."""
    backends = Backends(target)
    with listening(port) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        print(f"Loading {backends.model.key} with {target.engine}.", flush=True)
        backends.start()
        print(f"Serving {backends.model.key} (revision {backends.model.revision[:12]}) at {url}/v1 as {STUDENT}.")
        if target.pinned is None:
            print(f"A promotion or a rollback of {target.store.project} is loaded by itself.")
        if log is not None:
            print(f"Requests and answers are written to {log.file}.")
        print("Stop it with Ctrl-C.", flush=True)
        serve_on(listener, Proxy(backends, most, log).app)
        print("Stopped.")


@contextmanager
def answering(
    what: str, root: Path, hub: str | None, engine: EngineName | None, thinking: ThinkingSpec | None = None
) -> Iterator[LocalEndpoint]:
    """Yield an endpoint of a model while the block runs: a running one by its address, else one that is started here.

    Args:
        what: http://127.0.0.1:8000/v1#student, a recipe for its champion, or a model's key.
        thinking: How the student of a running endpoint thinks. A model that is started here says so itself.

    Raises Stop.
    """
    if what.startswith(("http://", "https://")):
        url, _, name = what.partition("#")
        running = LocalEndpoint(base_url=url, model=name or STUDENT, serves_student=True, temperature=0.0)
        yield running.teaching(thinking)
        return
    target = target_of(what, root, hub, [], engine, sessions=1, context=CONTEXT)
    model = target.model()
    with target.start(model) as started:
        print(f"Loading {model.key} with {target.engine}.", flush=True)
        try:
            started.wait_ready()
        except EngineFailed as failed:
            raise Stop(f"{target.engine} does not serve {model.key}: {failed}.", "Choose another --engine.") from failed
        own = LocalEndpoint(
            base_url=f"{started.url}/v1", model=started.model, serves_student=True, temperature=0.0, timeout=600.0
        )
        yield own.teaching(thinking_at(target.store.fetch(model)))


CONTEXT = 4096
"""Tokens of one request by default, prompt and answer, as far as the model reads."""
