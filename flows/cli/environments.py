"""`apprentice env list | serve NAME | check URL | audit NAME | play NAME`: the environments and their servers."""

import json
import os
import random
import sys
import textwrap
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from apprentice.envs.defaults import no_collection
from apprentice.flows.cli.error_messages import exit_with_message
from apprentice.flows.cli.options import JSON, SET, STORE
from apprentice.flows.cli.serving import TOKENS, write
from apprentice.flows.runtime.environment_variables import ready
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.serving.names import EngineName

env_app = typer.Typer(no_args_is_help=True, help="List, serve, check, audit and play the environments.")

NAME = Annotated[str, typer.Argument(help="A name from `apprentice env list`, or the path of a folder: ./my_env.")]
FROM_RECIPE = Annotated[Path | None, typer.Option("--recipe", help="Take settings and sizes from this recipe.")]
SETTINGS = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="One of the environment's settings. Repeatable."),
]


@env_app.command(name="list")
@exit_with_message()
def list_(json_: JSON = False) -> None:
    """List the environments: tools, turns, rewards, extras, recipes."""
    from apprentice.flows.environment_list import catalogue, rows

    _table(rows())
    if json_:
        print(json.dumps({"envs": catalogue()}, ensure_ascii=False))


@env_app.command()
@exit_with_message("The server did not start.")
def serve(
    name: NAME,
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 for a free port.")] = 8000,
    max_sessions: Annotated[int, typer.Option(min=1, help="Maximum concurrent episodes.")] = 64,
) -> None:
    """Serve an environment on 127.0.0.1 until Ctrl-C."""
    ready()
    from apprentice.envs.catalog import ExtraMissing, NoServer, server_app
    from apprentice.flows.cli.choice import name_of, settings_class
    from apprentice.flows.runtime.servers import listening, serve_on

    name = name_of(name)
    settings_class(name)
    try:
        app = server_app(name, max_sessions)
    except NoServer as none:
        raise Stop(f"There is nothing to serve: {none}.", "List them: apprentice env list") from None
    except ExtraMissing as missing:
        raise Stop(f"{name} cannot be served here: {missing}", "Install it, and try again.") from None
    listener = listening(port)
    if sys.flags.hash_randomization:  # a question drawn from a set must be the same on every server
        listener.close()
        os.execve(sys.executable, sys.orig_argv, os.environ | {"PYTHONHASHSEED": "0"})
    with listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        print(f"Serving {name} at {url}, up to {max_sessions} sessions. Stop it with Ctrl-C.", flush=True)
        serve_on(listener, lambda: app)
        print("Stopped.")


PLACE = Annotated[
    str,
    typer.Argument(
        help="http://…, or https://OWNER-NAME.hf.space for a Space; an image with its tag (owner/name:1); a name or a "
        "folder is served here meanwhile."
    ),
]
SERVES = Annotated[str | None, typer.Option(help="The environment it should serve. Default: the server's own answer.")]


@env_app.command()
def audit(
    place: PLACE, environment: SERVES = None, recipe: FROM_RECIPE = None, json_: JSON = False, set_: SET = None
) -> None:
    """Look for what would spoil a training: exit code 0, 1 with an error, 3 with warnings only."""
    _audited(place, environment, recipe, json_, set_, quick=False)


@env_app.command()
def check(
    place: PLACE, environment: SERVES = None, recipe: FROM_RECIPE = None, json_: JSON = False, set_: SET = None
) -> None:
    """Check that a server works for an environment or a recipe, by the quick checks of `env audit`."""
    _audited(place, environment, recipe, json_, set_, quick=True)


@exit_with_message("Nothing was changed.")
def _audited(
    place: str, environment: str | None, recipe: Path | None, json_: bool, set_: list[str] | None, quick: bool
) -> None:
    ready()
    from apprentice.flows.audit.audit import as_json, verdict
    from apprentice.flows.audit.audit import audit as look
    from apprentice.flows.cli.choice import chosen_for, reachable, sessions_for

    sessions = sessions_for(recipe, set_, quick)
    with wrong_code(place, json_), reachable(place, sessions) as (served, name):
        subject = chosen_for(served, environment or name, recipe, set_, sessions, served_here=name is not None)
        with Console(stderr=True).status("audit") as shown:
            report = look(subject, quick, shown.update)
    print_findings(each for each in report.findings if not quick or each.status != "does not apply")
    print_sentence(verdict(subject.server, subject.spec, report))
    if name is None and recipe is None and not report.wrong:
        print(f"A recipe for it: apprentice env adopt {place}")
    if json_:
        print(json.dumps(as_json(subject, report), ensure_ascii=False))
    if report.exit_code:
        raise typer.Exit(report.exit_code)


@env_app.command()
@exit_with_message("No recipe was written.")
def adopt(
    place: Annotated[
        str, typer.Argument(help="The URL of an OpenEnv server, a Space (owner/name), or a folder with openenv.yaml.")
    ],
    to: Annotated[Path | None, typer.Option("--to", help="Write the recipe to this file. Default: print it.")] = None,
    teacher: Annotated[str, typer.Option(help="The teacher's model.")] = "gpt-5-mini",
    base_url: Annotated[str, typer.Option(help="The teacher's endpoint. Default: OpenAI.")] = "",
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="What you know of it, such as reset={difficulty: 3}."),
    ] = None,
) -> None:
    """Look at a server that somebody else published, and write a recipe that trains on it."""
    ready()
    from apprentice.flows.cli.adopt import adopt as look
    from apprentice.flows.cli.adopt import adoptable
    from apprentice.flows.cli.choice import settings_given

    if to is not None and to.exists():
        raise Stop(f"{to} exists.", "Choose another name with --to.")
    with adoptable(place) as (server, command), Console(stderr=True).status("looking at it"):
        found = look(server, place, teacher, base_url, settings_given(set_), command)
    if to is None:
        print(found, end="")
    else:
        to.write_text(found)
        print(f"Wrote {to}. Train with it: apprentice run {to}")


@env_app.command()
@exit_with_message("The episode was abandoned.")
def play(
    name: NAME,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of the question. Default: a random one.")] = None,
    set_: SETTINGS = None,
    url: Annotated[str | None, typer.Option(help="A running server. Default: start one here.")] = None,
    recipe: FROM_RECIPE = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="Watch a model play instead: a recipe for its champion, a model's key, or "
            "http://127.0.0.1:8000/v1#student."
        ),
    ] = None,
    engine: Annotated[EngineName | None, typer.Option(help="With --model: as in `apprentice serve`.")] = None,
    store: STORE = Path("artifacts"),
) -> None:
    """Play an episode yourself, or watch a model play one. Ctrl-D ends it."""
    ready()
    from apprentice.flows.cli.choice import open_environment, recipe_at
    from apprentice.flows.serving.play_by_hand import play as play_it

    if model is not None:
        with no_collection():
            from apprentice.flows.serving.chat import Speaker, watch
            from apprentice.flows.serving.served import answering

        thinking = recipe_at(recipe).student.thinking if recipe else None
        with (
            open_environment(name, set_, url, recipe) as player,
            answering(model, store, None, engine, thinking) as endpoint,
        ):
            watch(player, _any_seed() if seed is None else seed, Speaker(endpoint, TOKENS, write), write)
        return
    with open_environment(name, set_, url, recipe) as environment:
        try:
            play_it(environment, _any_seed() if seed is None else seed)
        except EOFError:
            print("\nThe episode was abandoned.")


def _any_seed() -> int:
    """Return a random seed, and print it so that the question can be played again."""
    seed = random.SystemRandom().randrange(1_000_000)
    print(f"Seed {seed}.")
    return seed


NARROW = 76
"""Columns below which a finding stands under its check, not beside it."""


def print_findings(findings: Iterable[Any]) -> None:
    """Print a row for each finding, then the evidence of those that failed."""
    findings = list(findings)
    console = Console(highlight=False, markup=False, soft_wrap=False)
    if console.width < NARROW:
        for each in findings:
            print_sentence(f"{each.check}  {_is(each)}")
            for line in _found(each):
                print_sentence(line, indent=2)
    else:
        table = Table(box=None, padding=(0, 2, 0, 0))
        for name in ("check", "is"):
            table.add_column(name, no_wrap=True)
        table.add_column("found", overflow="fold")
        for each in findings:
            table.add_row(each.check, _is(each), "\n".join(_found(each)))
        with console.capture() as shown:
            console.print(table)
        for line in shown.get().splitlines():
            print(line.rstrip())
    for each in findings:
        if each.status == "failed" and (each.evidence or each.effect):
            print()
            print_sentence(f"{each.check}: {each.effect}")
            for shown in each.evidence:
                print_sentence(str(shown), indent=2)


def print_sentence(text: str, indent: int = 0) -> None:
    """Print a text between its indent and the terminal's right edge; only a word that is longer than a line is cut."""
    before = " " * indent
    wrapper = textwrap.TextWrapper(Console().width, before, f"{before}  ", break_on_hyphens=False)
    print(wrapper.fill(text))


@contextmanager
def wrong_code(given: str, json_: bool) -> Iterator[None]:
    """Print what is wrong in the code of an environment that cannot be imported, described or served; exit with 1.

    Args:
        given: Its name, or the path of its file or folder.
    Raises Stop where the code is not at fault.
    """
    from apprentice.envs.wire.server import ServerFailed
    from apprentice.flows.audit.own_code import code_finding

    try:
        yield
    except (Stop, typer.Exit):
        raise
    except Exception as error:
        if finding := code_finding(given, error):
            print_findings([finding])
            print_sentence(f"{given} cannot be audited: {finding.check}.")
            if json_:
                print(json.dumps({"ok": False, "environment": given, "findings": [finding.as_json()]}))
            raise typer.Exit(1) from error
        if isinstance(error, ServerFailed):
            remedy = f"See its log: apprentice env serve {given} --debug"
            raise Stop(f"The environment's server failed: {error}.", remedy) from error
        raise


def _is(finding: Any) -> str:
    return finding.severity if finding.status == "failed" else finding.status


def _found(finding: Any) -> Iterator[str]:
    yield finding.found
    if finding.remedy:
        yield f"→ {finding.remedy}"


def _table(rows: list[dict[str, Any]]) -> None:
    shown = Table(box=None, padding=(0, 2, 0, 0))
    for index, column in enumerate(rows[0]):
        shown.add_column(column, overflow="fold", no_wrap=index > 0 and column == "recipes")
    for row in rows:
        shown.add_row(*(str(value) for value in row.values()))
    Console(highlight=False, markup=False).print(shown)
