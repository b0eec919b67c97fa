"""The seeds that a run takes for collection, training and evaluation.

In: the sizes and starts that a recipe gives. Out: `SeedWindows`. A seed is a question, so the windows are far apart;
an environment with a list of tasks has one question a row, and its windows follow one another.
"""

from apprentice.envs.catalog import EnvironmentSpec
from apprentice.flows.recipe.sections import SHIFT, WindowSpecs
from apprentice.tasks.settings.spec import EvaluateSpec, SeedWindows, Window

BLOCK = 100_000_000
"""Distance in seeds between the windows of two purposes."""


def seed_windows(specs: WindowSpecs, seed: int, questions: int | None) -> SeedWindows:
    """Return the seeds of each purpose, with the starts that the recipe leaves out.

    Args:
        seed: The recipe's, which moves the windows of training.
        questions: How many there are, if they are few. If they suffice for all windows, each has rows of its own; if
            not, all windows are tries of the same questions.
    """
    windows, follows = {}, 0
    have_rows = questions is not None and sum(window.size for _, window in specs) <= questions
    for block, (purpose, window) in enumerate(specs):
        moved = 0 if purpose == "evaluate" else seed * SHIFT
        start = follows if have_rows else block * BLOCK + moved
        windows[purpose] = Window(start=start if window.start is None else window.start, size=window.size)
        follows += window.size
    return SeedWindows(**windows)


def sampled_where_repeated(spec: EvaluateSpec, environment: EnvironmentSpec) -> EvaluateSpec:
    """Return how a model is evaluated: by sampled answers where it answers a question several times."""
    if environment.questions is None or environment.questions >= spec.questions:
        return spec
    return spec.model_copy(update={"decoding": "sampled"})
