"""Finds out before a run buys anything what its trainings would lack on this machine: a package, a GPU, a server.

In: the recipe, and which trainings are still ahead. Out: nothing, or Stop. A run that finds them in its store needs
none of it.
"""

from collections.abc import Sequence

from apprentice.flows.recipe.recipe import Recipe


def check_hardware(recipe: Recipe, sections: Sequence[str] = ("sft", "grpo")) -> None:
    """Looks only where the recipe asks for more than a processor: torch takes seconds to import. Raises Stop."""
    specs = {section: getattr(recipe, section) for section in sections}
    asking = [spec for spec in specs.values() if spec.lora or spec.liger]
    generates = "grpo" in specs and recipe.grpo.generation.engine != "plain"
    if not asking and not generates:
        return
    from apprentice.tasks.models.hardware import check_training, this_machine
    from apprentice.tasks.training.generation import check_generation

    machine = this_machine()
    for section, spec in specs.items():
        check_training(section, spec, machine._replace(processes=spec.processes))
    if generates:
        check_generation(recipe.grpo.generation, machine._replace(processes=recipe.grpo.processes))
