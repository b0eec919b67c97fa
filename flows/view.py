"""`apprentice view`: the episodes of an artifact, or of a recipe's newest run, in a browser; nothing is loaded at once.

In: a key or a recipe. Out: a server on 127.0.0.1 until it is interrupted, with the table of the report's page.
"""

from pathlib import Path
from typing import Any, NamedTuple

from apprentice.flows.pages.episode_files import EpisodeFiles
from apprentice.flows.pages.episodes import HELD_OUT, EpisodeSource
from apprentice.flows.pages.html import as_title, as_view_page
from apprentice.flows.recipe.recipe import Recipe
from apprentice.flows.runtime.servers import listening, open_store, serve_on
from apprentice.tasks.artifacts.local import LocalStore
from apprentice.tasks.artifacts.provenance import Parent
from apprentice.tasks.artifacts.types import Artifact, Decision, Evaluation, KeptRollouts, Release, Rollouts, Verdict
from apprentice.tasks.judgement.contamination import held_out_texts
from apprentice.tasks.lineage.locate import locate
from apprentice.tasks.lineage.node import Node, node_of
from apprentice.tasks.reporting.errors import Stop


class Shown(NamedTuple):
    """One file of episodes, with its title and kind."""

    source: EpisodeSource
    episodes: int
    ref: str


def shown_of_key(key: str, root: Path, hub: str | None = None) -> list[Shown]:
    """The episodes of an artifact. Raises Stop where there is none of that name, or it has no episodes."""
    store, named = locate(key, root, hub)
    return _shown(node_of(store, named, {}))


def shown_of_recipe(recipe: Recipe) -> list[Shown]:
    """The episodes of the newest run of a recipe that was judged, else the newest rollouts. Raises Stop."""
    store = open_store(recipe)
    newest = _newest(store, Verdict) or _newest(store, Rollouts)
    if newest is None:
        raise Stop(f"{recipe.name} has no episodes in {store.root} yet.", "Run it first: apprentice run RECIPE.")
    return _shown(newest)


def serve(shown: list[Shown], port: int, browser: bool) -> None:
    """Serve the table until Ctrl-C. Raises Stop where the port is taken."""
    with listening(port, "Choose another with --port.") as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/"
        print(f"The episodes are at {url}; stop it with Ctrl-C.", flush=True)
        if browser:
            import webbrowser

            webbrowser.open(url)
        serve_on(listener, lambda: app_of(shown))
        print("The view has stopped.")


def app_of(shown: list[Shown]) -> Any:
    """The server: the page, rows, transcripts, a search. It answers to this machine's own names only."""
    from starlette.applications import Starlette
    from starlette.middleware import Middleware
    from starlette.middleware.trustedhost import TrustedHostMiddleware
    from starlette.requests import Request
    from starlette.responses import HTMLResponse, JSONResponse, Response
    from starlette.routing import Route

    files = EpisodeFiles([each.source for each in shown], [each.episodes for each in shown])
    page = as_view_page([each._asdict() for each in shown])

    def rows(request: Request) -> Response:
        return JSONResponse(files.rows(int(request.query_params["from"])))

    def transcripts(request: Request) -> Response:
        return JSONResponse(files.transcripts(map(int, request.query_params["rows"].split(","))))

    def search(request: Request) -> Response:
        return JSONResponse(files.search(request.query_params["text"]))

    routes = [
        Route("/", lambda _: HTMLResponse(page)),
        *(Route(f"/{each.__name__}", each) for each in (rows, transcripts, search)),
    ]
    own = Middleware(TrustedHostMiddleware, allowed_hosts=["127.0.0.1", "localhost"])
    return Starlette(routes=routes, middleware=[own])


def _shown(node: Node) -> list[Shown]:
    if node.is_a(Release) and "judged" in node.inputs:
        return _shown(node.inputs["judged"])
    if node.is_a(Verdict, Decision):
        found = [_of_one(name, each) for name, each in node.inputs.items() if each.is_a(Evaluation)]
        texts = _evaluation_texts(node)
        return found + [_rollouts(each, texts) for each in node.inputs.values() if each.is_a(Rollouts)]
    if node.is_a(Evaluation):
        return [_of_one(f"evaluations.{node.counts['model']}", node)]
    if node.is_a(Rollouts, KeptRollouts):
        return [_rollouts(node, frozenset())]
    raise Stop(
        f"{node.ref} is of kind {node.named.kind}, which has no episodes.",
        "Name rollouts, an evaluation, a verdict, a decision or a release; the report's lineage lists their keys.",
    )


def _of_one(name: str, node: Node) -> Shown:
    """An evaluation, by its name among a verdict's inputs, such as evaluations.grpo."""
    purpose, _, model = name.rpartition(".")
    question_set = purpose.removeprefix("guards.") if purpose.startswith("guards.") else HELD_OUT
    source = EpisodeSource(as_title(model), question_set, node.store.fetch(node.artifact) / "episodes.jsonl")
    return Shown(source, node.counts["n"], node.ref)


def _rollouts(node: Node, evaluation_texts: frozenset[str]) -> Shown:
    """`evaluation_texts`: the evaluation's questions, which the filter drops."""
    kept = node.is_a(KeptRollouts)
    path = node.store.fetch(node.artifact) / ("kept.jsonl" if kept else "rollouts.jsonl")
    source = EpisodeSource(
        as_title("dataset" if node.is_of_a_dataset else "teacher"), "collected", path, evaluation_texts
    )
    return Shown(source, node.counts["kept" if kept else "episodes"], node.ref)


def _evaluation_texts(verdict: Node) -> frozenset[str]:
    """The normalized questions of the first evaluation that no kept episode may have."""
    evaluation = next((each for name, each in verdict.inputs.items() if name.startswith("evaluations.")), None)
    questions = evaluation.inputs.get("questions") if evaluation else None
    folder = questions.fetch() if questions else None
    return frozenset(held_out_texts(folder) if folder else ())


def _newest(store: LocalStore, kind: type[Artifact]) -> Node | None:
    """The artifact of a kind, or of one below it, that was made last."""
    found = []
    for each in (kind, *kind.__subclasses__()):
        for key, revision in store.tags(each, "").items():
            named = Parent(kind=each.__name__, repository=store.repository(each), revision=revision, key=key)
            node = node_of(store, named, {})
            found += [node] if node.record else []
    return max(found, key=lambda node: node.record.provenance.made_at or "" if node.record else "", default=None)
