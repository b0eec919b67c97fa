"""`apprentice serve` and `apprentice chat`: a trained model in use."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from apprentice.envs.defaults import no_collection
from apprentice.flows.cli.error_messages import exit_with_message
from apprentice.flows.cli.options import HUB, SET, STORE
from apprentice.flows.runtime.environment_variables import ready
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.serving.names import EngineName

MODEL = Annotated[
    str | None,
    typer.Argument(
        metavar="RECIPE|KEY",
        help="A recipe, by file or name, whose champion is served and followed; or a model's key. Default: the one "
        "project in the folder of artifacts that has a champion.",
    ),
]
write = partial(print, end="", flush=True)
TOKENS = 256
"""Of one answer, by default."""
ENGINE = Annotated[
    EngineName | None,
    typer.Option(help="Default: vLLM if it is installed, else transformers. llama.cpp serves an export."),
]


@exit_with_message("The server has stopped.")
def serve(
    model: MODEL = None,
    engine: ENGINE = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 for a free port.")] = 8000,
    most: Annotated[int, typer.Option(min=1, help="Requests at once; more get 429 with Retry-After.")] = 8,
    context: Annotated[int, typer.Option(min=16, help="Tokens of one request, prompt and answer.")] = 4096,
    log: Annotated[Path | None, typer.Option(help="Write requests and answers there, for `apprentice import`.")] = None,
    log_mask: Annotated[
        list[str] | None, typer.Option(metavar="REGEX", help="Write *** for what this matches. Repeatable.")
    ] = None,
    log_drop: Annotated[
        list[str] | None, typer.Option(metavar="FIELD", help="Leave this field out of the log. Repeatable.")
    ] = None,
    log_mb: Annotated[float, typer.Option(min=0.001, help="The log's largest size.")] = 100.0,
    store: STORE = Path("artifacts"),
    hub: HUB = None,
    set_: SET = None,
) -> None:
    """Serve a trained model on 127.0.0.1 by OpenAI's API until Ctrl-C; follow its promotions and rollbacks."""
    ready()
    if log is None and (log_mask or log_drop):
        raise Stop("--log-mask and --log-drop are for a log.", "Name its file: --log FILE.")
    with no_collection():
        from apprentice.flows.serving.request_log import RequestLog
        from apprentice.flows.serving.served import serve_target, target_of

    target = target_of(model, store, hub, set_ or [], engine, most, context)
    written = RequestLog(log, log_mask or [], log_drop or [], int(log_mb * 1e6)) if log else None
    serve_target(target, port, most, written)


@exit_with_message("The chat has ended.")
def chat(
    recipe: Annotated[Path, typer.Argument(help="The recipe whose environment plays the calls.")],
    model: Annotated[
        str | None,
        typer.Option(help="A recipe, a model's key, or http://127.0.0.1:8000/v1#student. Default: RECIPE's champion."),
    ] = None,
    engine: ENGINE = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the first question.")] = 0,
    tokens: Annotated[int, typer.Option(min=1, help="Tokens of one answer.")] = TOKENS,
    store: STORE = Path("artifacts"),
    hub: HUB = None,
) -> None:
    """Talk with a trained model in the terminal; the environment plays its calls for real. Ctrl-D ends it."""
    ready()
    with no_collection():
        from apprentice.flows.cli.choice import open_environment, recipe_at
        from apprentice.flows.serving.chat import Speaker
        from apprentice.flows.serving.chat import chat as talk
        from apprentice.flows.serving.served import answering

    own = recipe_at(recipe)
    with (
        open_environment(own.environment.name, None, None, recipe) as player,
        answering(model or str(recipe), store, hub, engine, own.student.thinking) as endpoint,
    ):
        try:
            talk(player, seed, Speaker(endpoint, tokens, write), input, write)
        except EOFError:
            print("\nThe chat has ended.")
