"""Where a run's training begins: a student of its own, the champion, or a checkpoint that fits the recipe."""

from pathlib import Path

import pytest

from apprentice.envs.catalog import EnvironmentSpec
from apprentice.flows.beginning import initial_checkpoint
from apprentice.flows.recipe.loading import load_recipe
from apprentice.flows.recipe.sections import RoundSpec
from apprentice.tasks.artifacts.local import LocalStore
from apprentice.tasks.judgement.champions import Champions
from apprentice.tasks.reporting.errors import Stop
from tests.flows.commands import TOY
from tests.tasks.family import BUILT, Family

ECHO = TOY.with_name("echo-laptop.yaml")
GOES_ON = "student={champion: true}"


@pytest.fixture
def family(tmp_path: Path, chain_sum: EnvironmentSpec) -> Family:
    return Family(LocalStore(tmp_path / "artifacts", "toy"), tmp_path, chain_sum)


def test_a_student_of_its_own_is_no_checkpoint(family: Family):
    assert initial_checkpoint(family.store, load_recipe(TOY, [])) is None


def test_the_champion_is_found_and_its_absence_is_told(family: Family):
    with pytest.raises(Stop, match="toy has no champion to continue from"):
        initial_checkpoint(family.store, load_recipe(TOY, [GOES_ON]))
    Champions(family.store).promote(family.release, None)
    assert initial_checkpoint(family.store, load_recipe(TOY, [GOES_ON])) == family.release


def test_a_checkpoint_is_named_by_its_revision_or_its_beginning(family: Family):
    for named in (family.sft.revision, family.sft.revision[:10]):
        assert initial_checkpoint(family.store, load_recipe(TOY, [f"student={{checkpoint: '{named}'}}"])) == family.sft
    with pytest.raises(Stop, match="ffffffffff is no model of toy"):
        initial_checkpoint(family.store, load_recipe(TOY, ["student={checkpoint: ffffffffff}"]))


def test_a_champion_of_another_environment_is_refused_by_name(family: Family):
    Champions(family.store).promote(family.release, None)
    with pytest.raises(Stop, match=r"toy-model@.* was trained in reasoning_gym, and this recipe plays echo"):
        initial_checkpoint(family.store, load_recipe(ECHO, [GOES_ON, "name=toy"]))


def test_a_round_whose_recipe_has_another_student_than_the_champion_began_as_is_refused(family: Family):
    plan = RoundSpec(number=1, champion=family.release.revision)
    own = load_recipe(TOY, []).model_copy(update={"round": plan, "student": BUILT})
    assert initial_checkpoint(family.store, own) == family.release
    with pytest.raises(Stop, match="descends from another student"):
        initial_checkpoint(family.store, load_recipe(TOY, []).model_copy(update={"round": plan}))
