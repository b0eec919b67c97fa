"""`apprentice evaluate`: models on a recipe's environment, each compared with the first.

In: a recipe, the models' names. Out: a table, or one line of JSON.
"""

import json
from datetime import date
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from apprentice.flows.cli.common import RECIPE, SET, exit_with_message, prepared

if TYPE_CHECKING:
    from apprentice.flows.recipe.recipe import Recipe
    from apprentice.tasks.settings.stages import Window


def evaluate(
    recipe: RECIPE,
    model: Annotated[
        list[str],
        typer.Option(
            help="A key, a revision or a tag from the report's lineage, or at least its first 6 characters; champion, "
            "teacher, a folder, owner/name@revision on the Hub, or https://host/v1#model for an endpoint. "
            "Repeatable: each is compared with the first."
        ),
    ],
    protocol: Annotated[
        Literal["parity", "tutorial", "inspect"],
        typer.Option(
            help="parity: as in training. tutorial: as the tutorial does, to compare with its results. "
            "inspect: as an Inspect AI task, with Inspect's model names, such as openai/gpt-5-mini."
        ),
    ] = "parity",
    questions: Annotated[
        int | None, typer.Option(min=1, help="Number of questions. Default: the recipe's evaluate.questions.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Seed of the first question. Default: the recipe's evaluation window.")
    ] = None,
    as_of: Annotated[
        str | None, typer.Option(help="Label for the state of a model behind an endpoint. Default: today's date.")
    ] = None,
    base_url: Annotated[str | None, typer.Option(help="With inspect: the endpoint, if not the provider's.")] = None,
    served_student: Annotated[bool, typer.Option(help="The endpoints serve students trained by this project.")] = False,
    trust_code: Annotated[
        list[str] | None,
        typer.Option(help="A folder, or owner/name@commit on the Hub, whose Python code you have read and trust."),
    ] = None,
    json_: Annotated[bool, typer.Option("--json", help="Print JSON on the last line.")] = False,
    set_: SET = None,
) -> None:
    """Evaluate models on a recipe's environment, and compare them."""
    with exit_with_message():
        chosen = prepared(recipe, set_, runs_flow=True)
        from apprentice.flows.compare_models import check_addresses
        from apprentice.flows.runtime.prefect_server import start_prefect_server

        check_addresses([*model, *([base_url] if base_url else [])])
        spec = chosen.evaluate.model_copy(update={"questions": questions or chosen.evaluate.questions})
        window = _window(chosen, spec.questions, seed)
        start_prefect_server()
        if protocol == "inspect":
            from apprentice.flows.inspection import inspect_models

            report = inspect_models(chosen, model, spec, window, served_student, base_url)
        else:
            from apprentice.flows.compare_models import compare_models

            spec = spec.model_copy(update={"protocol": protocol})
            report = compare_models(chosen, model, spec, window, as_of or str(date.today()), served_student, trust_code)
        if json_:
            only = next(iter(report["models"].values())) if len(model) == 1 else None
            print(json.dumps({"model": model[0], **only} if only else report))


def _window(recipe: "Recipe", questions: int, seed: int | None) -> "Window":
    """The seeds to ask: the recipe's evaluation window, or as many as there are questions from `seed` on."""
    from apprentice.tasks.reporting.errors import Stop
    from apprentice.tasks.settings.stages import Window

    if seed is not None:
        return Window(start=seed, size=questions)
    window = recipe.seed_windows().evaluate
    if questions > window.size:
        raise Stop(
            f"windows.evaluate has {window.size} seeds, fewer than the {questions} questions.",
            "Lower --questions, or choose another first seed with --seed.",
        )
    return window
