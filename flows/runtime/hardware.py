"""Checks before a run buys anything that this machine can train: packages, GPU, vLLM server.

In: the recipe, and the training stages still ahead. Out: nothing, or Stop.
"""

from collections.abc import Sequence

from apprentice.flows.recipe.recipe import Recipe


def check_hardware(recipe: Recipe, sections: Sequence[str] = ("sft", "grpo")) -> None:
    """Check only recipes that need more than a CPU, because importing torch takes seconds. Raises Stop."""
    specs = {section: getattr(recipe, section) for section in sections if section in recipe.trains_on}
    demanding = [spec for spec in specs.values() if spec.lora or spec.liger]
    generating = recipe.grpo if "grpo" in specs and recipe.grpo and recipe.grpo.generation.engine != "plain" else None
    if not demanding and generating is None:
        return
    from apprentice.tasks.models.memory import check_training, this_machine
    from apprentice.tasks.training.generation import check_generation

    machine = this_machine()
    for section, spec in specs.items():
        check_training(section, spec, machine._replace(processes=spec.processes))
    if generating is not None:
        check_generation(generating.generation, machine._replace(processes=generating.processes))
