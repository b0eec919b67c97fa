"""Says before a run begins what its trainings would lack on this machine: a package, a GPU, a server.

In: the recipe. Out: warnings; the stage itself stops, if it still has to be made. A run that finds everything in its
store needs none of it.
"""

from apprentice.flows.recipe import Recipe
from apprentice.tasks import announce
from apprentice.tasks.errors import Stop


def warn_of_hardware(recipe: Recipe) -> None:
    """Looks only where the recipe asks for more than a processor: torch takes seconds to import."""
    asking = [spec for spec in (recipe.sft, recipe.grpo) if spec.lora or spec.liger]
    if not asking and recipe.grpo.generation.engine == "plain":
        return
    from apprentice.tasks.generation import check_generation
    from apprentice.tasks.hardware import check_training, this_machine

    machine = this_machine()
    for check in (
        lambda: check_training("sft", recipe.sft, machine),
        lambda: check_training("grpo", recipe.grpo, machine._replace(processes=recipe.grpo.processes)),
        lambda: check_generation(recipe.grpo.generation, machine._replace(processes=recipe.grpo.processes)),
    ):
        try:
            check()
        except Stop as lacking:
            announce.warn(str(lacking))
