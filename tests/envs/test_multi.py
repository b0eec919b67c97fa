"""A mixture: each question belongs to one environment, which plays it with its own tools, over its own server."""

from collections import Counter
from collections.abc import Iterator

import pytest
from pydantic import ValidationError

from apprentice.envs.catalog import EnvironmentSpec
from apprentice.envs.multi import call
from apprentice.envs.pool import EnvironmentPool
from apprentice.envs.serving.process import local_server
from apprentice.envs.wire.server import EnvironmentServer
from apprentice.envs.wire.session import SessionLost

pytestmark = pytest.mark.long

SPELLING = {"dataset": "spell_backward", "config": {"min_word_len": 3, "max_word_len": 5}}
MIXED = EnvironmentSpec(
    name="multi",
    settings={
        "parts": {
            "say": {"name": "echo", "settings": {"words": 1}, "weight": 3},
            "spell": {"name": "reasoning_gym", "settings": SPELLING},
        }
    },
)


@pytest.fixture(scope="module")
def both(server: EnvironmentServer) -> Iterator[EnvironmentServer]:
    with local_server("apprentice.envs.serving.serve", "echo", "--max-sessions", "8") as url:
        parts = {"echo": EnvironmentServer(url=url, patience=1.0), "reasoning_gym": server}
        yield EnvironmentServer(parts=parts, sessions=4)


def test_a_seed_belongs_to_one_environment_for_ever_and_the_shares_are_the_weights():
    instance = MIXED.make()
    labels = Counter(instance.part(seed).label for seed in range(4000))
    assert labels == Counter(MIXED.make().part(seed).label for seed in range(4000))
    assert 0.72 < labels["say"] / 4000 < 0.78


def test_whose_a_seed_is_does_not_hang_on_the_order_in_which_the_parts_are_written():
    turned = {"parts": dict(reversed(list(MIXED.settings["parts"].items())))}
    other = EnvironmentSpec(name="multi", settings=turned).make()
    assert [other.part(seed).label for seed in range(99)] == [MIXED.make().part(seed).label for seed in range(99)]


def test_a_question_is_the_one_that_its_environment_asks_alone_under_that_seed(both: EnvironmentServer):
    exclusive = EnvironmentSpec(name="reasoning_gym", settings=SPELLING)
    seeds = [seed for seed in range(40) if MIXED.make().part(seed).label == "spell"]
    with EnvironmentPool(MIXED, both) as pool, EnvironmentPool(exclusive, both.parts["reasoning_gym"], 1) as other:
        for seed in seeds:
            assert pool.players[0].ask(seed) == other.players[0].ask(seed)


def test_each_part_has_its_own_tools_and_instructions():
    say, spell = MIXED.make().parts()
    assert [tool.name for tool in say.tools] == ["echo"]
    assert [tool.name for tool in spell.tools] == ["answer"]
    assert say.instructions != spell.instructions


def test_the_scripted_teacher_wins_in_every_part_also_where_two_have_the_same_instructions(both: EnvironmentServer):
    sums = {"name": "reasoning_gym", "settings": {"dataset": "chain_sum"}}
    mixed = EnvironmentSpec(name="multi", settings={"parts": MIXED.settings["parts"] | {"sum": sums}})

    def play(instance, seed: int) -> float:
        question = instance.ask(seed)
        part = instance.part(seed)
        opening = [{"role": "system", "content": part.instructions}, {"role": "user", "content": question}]
        tool, arguments = call(mixed.settings, opening, 0.0, seed)
        part.act(tool, arguments)
        return part.reward

    with EnvironmentPool(mixed, both) as pool:
        won = dict(pool.map(play, range(60)))
    assert set(won.values()) == {1.0}
    assert {mixed.make().part(seed).label for seed in won} == {"say", "spell", "sum"}


def test_the_scripted_teacher_needs_the_questions_seed():
    with pytest.raises(ValueError, match="send it as `seed`"):
        call(MIXED.settings, [{"role": "user", "content": "tabby"}], 0.0)


def test_whose_a_question_is_stands_first_among_its_traits():
    instance = MIXED.make()
    seed = next(seed for seed in range(99) if instance.part(seed).label == "say")
    assert list(instance.slices(seed, "abc def").items()) == [("environment", "say"), ("letters", 6)]


def test_a_server_of_one_part_that_is_away_loses_the_mixture_with_words(both: EnvironmentServer):
    gone = EnvironmentServer(url="http://127.0.0.1:9", patience=0.2)
    broken = both.model_copy(update={"parts": both.parts | {"echo": gone}})
    with EnvironmentPool(MIXED, broken, 1) as pool, pytest.raises(SessionLost, match=r"127\.0\.0\.1:9"):
        list(pool.map(lambda instance, seed: instance.ask(seed), range(20)))


def test_the_version_of_a_mixture_tells_those_of_its_parts():
    assert MIXED.version == "1, say echo 1, spell reasoning_gym 2"
    assert MIXED.played_by(MIXED.make().parts()[1]) == "spell: reasoning_gym 2"
    assert str(MIXED) == "multi say spell"


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        ({}, "at least 1 item"),
        ({"a": {"name": "eco"}}, "a: unknown environment 'eco'; did you mean 'echo'"),
        ({"a": {"name": "multi", "settings": {"parts": {"b": {"name": "echo"}}}}}, "a mixture holds no mixture"),
        ({"a": {"name": "echo", "settings": {"words": 0}}}, "greater than or equal to 1"),
        ({"a": {"name": "echo", "weight": 0}}, "greater than 0"),
        ({"a b": {"name": "echo"}}, "no label"),
    ],
)
def test_a_mixture_that_cannot_be_played_is_refused_with_words(parts: dict, says: str):
    with pytest.raises(ValidationError, match=says):
        EnvironmentSpec(name="multi", settings={"parts": parts})
