"""`apprentice export KEY --format gguf`: a model in files for llama.cpp, each measured against its own evaluation.

In: a model's key. Out: an `Exported` in the store, and a folder with its files. The recipe, the environment and the
questions come from the records; nothing is trained, and no Prefect server is needed.
"""

import os
import shutil
from pathlib import Path

from apprentice.envs.catalog import EnvironmentSpec
from apprentice.flows.recipe.loading import explained, load_recipe
from apprentice.flows.recipe.of_record import recorded_recipe
from apprentice.flows.recipe.sections import HubSpec, StoreSpec
from apprentice.flows.runtime.servers import RunServers, open_store
from apprentice.tasks.artifacts.alike import newest_first
from apprentice.tasks.artifacts.provenance import parent
from apprentice.tasks.artifacts.store_files import disk_errors
from apprentice.tasks.artifacts.types import Checkpoint, Evaluation, Exported, Questions, Release
from apprentice.tasks.engine.run import RunContext
from apprentice.tasks.episodes.thinking import thinking_of
from apprentice.tasks.export import export
from apprentice.tasks.lineage.locate import locate
from apprentice.tasks.lineage.node import Node, node_of
from apprentice.tasks.models.tokenizer import load_tokenizer
from apprentice.tasks.reporting import announce
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.serving.exported import read_export
from apprentice.tasks.serving.gguf import build, check_exportable, check_tools
from apprentice.tasks.settings.spec import EvaluateSpec


def export_gguf(key: str, root: Path, hub: str | None, overrides: list[str], to: Path | None) -> tuple[Exported, Path]:
    """Write and measure a model's files; return the artifact and the folder with the files.

    Args:
        key: Of a model, or `champion` tags and revisions as `locate` takes them.
        root: The folder of artifacts.
        hub: The namespace on the Hub that has what the folder does not.
        overrides: Of the recorded recipe, such as export.quantize=[q8_0] and server.url=….
        to: A new folder. Default: KEY-gguf.

    Raises Stop.
    """
    found, named = locate(key, root, hub)
    node = node_of(found, named, {})
    if not node.is_a(Checkpoint):
        raise Stop(
            f"{key} is {named.kind}, not a model.",
            "Take the key of sft, grpo or release; the report's lineage lists them. Rollouts have --format trl.",
        )
    folder = to or Path(f"{named.key}-gguf")
    if folder.exists():
        raise Stop(f"{folder} exists.", "Name a new folder with --to.")
    where = StoreSpec(path=root, hub=HubSpec(namespace=hub) if hub else None)
    recorded = recorded_recipe(node).model_copy(update={"store": where, "report_to": []})
    recipe = load_recipe(recorded, overrides)
    check_tools(recipe.export.quantize)
    store = open_store(recipe, hub_needed=False)
    spec, checkpoint, evaluation, environment, questions = evaluated_model(node, recipe.environment)
    source = store.fetch(checkpoint)
    tokenizer = load_tokenizer(source, [recipe.student])
    check_exportable(source, tokenizer, key)
    forms = recipe.export.of(thinking_of(tokenizer))
    with RunServers(recipe) as servers:
        run = RunContext(store, servers, **recipe.for_work())
        made = export(run, forms, spec, checkpoint, evaluation, environment, questions, build())
    store.gather()
    whole = store.fetch(made)
    announce.table("exported", f"{key} in llama.cpp", read_export(whole).rows())
    with disk_errors(folder.absolute().parent):
        _linked(whole, folder)
    return made, folder


def evaluated_model(
    node: Node, environment: EnvironmentSpec
) -> tuple[EvaluateSpec, Checkpoint, Evaluation, EnvironmentSpec, Questions]:
    """Return the trained model behind a release, or the model itself, and how it was evaluated, from the records.

    Raises Stop.
    """
    trained = node.inputs.get("trained", node) if node.is_a(Release) else node
    evaluation = _evaluation_of(trained, environment)
    if evaluation is None:
        raise Stop(
            f"{node.ref} was not evaluated, so its files could be compared with nothing.",
            f"Evaluate it: apprentice evaluate RECIPE --model {trained.named.key}",
        )
    settings = evaluation.settings
    remedy = f"Evaluate the model with this code: apprentice evaluate RECIPE --model {trained.named.key}"
    with explained(f"The environment of {node.ref} is not the one that is installed", remedy):
        played_in = EnvironmentSpec.model_validate(settings["environment"])
    checkpoint, judged, questions = trained.artifact, evaluation.artifact, evaluation.inputs["questions"].artifact
    assert isinstance(checkpoint, Checkpoint)
    assert isinstance(judged, Evaluation)
    assert isinstance(questions, Questions)
    return EvaluateSpec.model_validate(settings["spec"]), checkpoint, judged, played_in, questions


def _evaluation_of(model: Node, environment: EnvironmentSpec) -> Node | None:
    """Return the evaluation of a model in an environment with the most questions; the newest of several.

    One in which thoughts were ended or swapped for the model is taken only without another: a server cannot repeat it.
    """
    store, wanted = model.store, (environment.name, environment.settings)
    found: list[tuple[bool, Evaluation]] = []
    for evaluation, record in newest_first(store, Evaluation, store.tags(Evaluation, "")):
        made, settings = record.made_by, record.made_by.get("settings", {})
        given, spec = settings.get("environment", {}), settings.get("spec", {})
        is_its_own = made["stage"] == "evaluate" and made["inputs"].get("checkpoint") == model.named.revision
        if is_its_own and (given.get("name"), given.get("settings")) == wanted:
            is_its_own_thought = spec.get("thought_budget") is None and not spec.get("swapped_thoughts")
            found.append((is_its_own_thought, evaluation))
    if not found:
        return None
    _, chosen = max(found, key=lambda each: (each[0], each[1].n))  # of several the first
    return node_of(store, parent(chosen), {})


def _linked(whole: Path, folder: Path) -> None:
    """Give the files a folder of the user's, all or none."""
    part = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    try:
        shutil.copytree(whole, part, copy_function=_link)
        part.rename(folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _link(source: str, to: str) -> None:
    """Share a model's bytes with the store; copy what a person may edit."""
    on_one_disk = Path(source).stat().st_dev == Path(to).parent.stat().st_dev
    if source.endswith(".gguf") and on_one_disk:
        os.link(source, to)
    else:
        shutil.copyfile(source, to)
