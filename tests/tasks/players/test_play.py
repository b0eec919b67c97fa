"""Who plays an examination: batches stay full where episodes end at different turns, and nothing is mixed up."""

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from apprentice.envs import base
from apprentice.envs.catalog import EnvironmentSpec
from apprentice.envs.player import Player
from apprentice.envs.pool import EnvironmentPool
from apprentice.envs.reasoning_gym.env import Settings
from apprentice.envs.wire.server import EnvironmentServer
from apprentice.envs.wire.session import Session, SessionLost
from apprentice.tasks.episodes.episode import Episode, Message
from apprentice.tasks.episodes.record import EvaluatedEpisode
from apprentice.tasks.players.play import (
    PROTOCOLS,
    TUTORIAL_TOKENS,
    Endpoint,
    LocalModel,
    Play,
    play_alone,
    play_batched,
    plays_of,
)
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.settings.spec import EvaluateSpec
from tests.tasks.episodes.test_episode import Guess, call


class Places:
    """As many toy environments as a test wants; a pool without a server."""

    together = EnvironmentPool.together

    def __init__(self, size: int):
        self.players = [Player(Guess(Settings(dataset="chain_sum"))) for _ in range(size)]

    def playable(self, idle: list[int], wanted: int) -> list[int]:
        return idle[:wanted]

    def map(self, play: Any, items: list[Play]) -> Iterator[tuple[Play, EvaluatedEpisode]]:
        return ((item, play(self.players[0], item)) for item in items)


class Counting:
    """Says in turn n of an episode that the number is n: right for seed n in its n-th turn."""

    def __init__(self):
        self.batches: list[int] = []

    def reply(self, episodes: list[Episode]) -> list[Message]:
        self.batches.append(len(episodes))
        turns = [sum(message["role"] == "assistant" for message in episode.messages) + 1 for episode in episodes]
        return [call("guess", {"number": turn}) for turn in turns]


def played(seeds: list[int], size: int) -> tuple[list[EvaluatedEpisode], list[int]]:
    records: list[EvaluatedEpisode] = []
    counting = Counting()
    pool: Any = Places(size)
    plays = [Play(place, seed, "Which number?", 0) for place, seed in enumerate(seeds)]
    play_batched(pool, plays, counting, PROTOCOLS["parity"], records.append)
    return sorted(records, key=lambda record: record.place), counting.batches


def test_episodes_of_several_turns_are_played_to_their_own_end():
    records, _ = played([1, 2, 3, 4], size=4)
    assert [(record.seed, record.turns, record.reward) for record in records] == [
        (1, 1, 1.0),
        (2, 2, 1.0),
        (3, 3, 1.0),
        (4, 3, 0.0),  # out of turns
    ]


def test_a_place_whose_episode_ended_takes_the_next_one_at_once():
    """Four places, twelve episodes of one to three turns: 24 turns need six full batches, not nine for three waves."""
    _, batches = played([1, 2, 3] * 4, size=4)
    assert sum(batches) == 24
    assert len(batches) <= 7


class Leaving(Guess):
    """Its server is known to be away once `turns` turns were played."""

    def __init__(self, turns: int):
        session = Session(EnvironmentServer(url="http://127.0.0.1:9"))
        super().__init__(Settings(dataset="chain_sum"), session)
        self.leave = session._breaker.stop
        self.left = turns
        self._is_away()

    def guess(self, number: int) -> str:
        """Guess the number.

        Args:
            number: Your guess.

        Returns:
            Whether it is higher or lower.
        """
        self.left -= 1
        self._is_away()
        return super().guess(number)

    def _is_away(self) -> None:
        if not self.left:
            self.leave()


@pytest.mark.parametrize("turns", [0, 1, 2])
def test_no_turn_is_bought_while_the_environment_is_away(turns: int):
    pool: Any = Places(0)
    pool.players = [Player(Leaving(turns))]
    counting, records = Counting(), []
    with pytest.raises(SessionLost):
        play_alone(pool, [Play(0, 9, "Which number?", 0)], counting, PROTOCOLS["parity"], records.append)
    assert (len(counting.batches), records) == (turns, [])


class Crashing:
    """Calls the tool in which the environment is lost."""

    def reply(self, episodes: list[Episode]) -> list[Message]:
        return [call("crash", {}) for _ in episodes]


@pytest.mark.parametrize("play", [play_alone, play_batched])
def test_an_environment_that_is_lost_in_an_episode_leaves_no_record_of_it(play: Any):
    pool: Any = Places(2)
    records: list[EvaluatedEpisode] = []
    with pytest.raises(SessionLost):
        play(pool, [Play(0, 9, "Which number?", 0)], Crashing(), PROTOCOLS["parity"], records.append)
    assert records == []


def test_arguments_are_recorded_as_text_and_loaded_whatever_their_columns_are():
    records, _ = played([1], size=1)
    assert records[0].messages[2]["tool_calls"][0]["function"]["arguments"] == '{"number": 1}'


class Spending(Counting):
    """Reads ten tokens and writes two in each turn."""

    def reply(self, episodes: list[Episode]) -> list[Message]:
        for episode in episodes:
            episode.prompt_tokens += 10
            episode.completion_tokens += 2
        return super().reply(episodes)


class Rewarded(Guess):
    """An environment with two reward functions."""

    streams: ClassVar = {"found": 1.0, "early": 0.1}

    def scores(self) -> dict[str, float | None]:
        return {"found": self.reward, "early": 0.5}


def test_the_record_has_the_tokens_of_all_turns_and_the_rewards_parts():
    pool, records = Places(2), []
    pool.players[1] = Player(Rewarded(Settings(dataset="chain_sum")))
    plays = [Play(0, 2, "Which number?", 0), Play(1, 2, "Which number?", 0)]
    play_batched(pool, plays, Spending(), PROTOCOLS["parity"], records.append)  # type: ignore[arg-type]
    assert [(each.prompt_tokens, each.completion_tokens) for each in records] == [(20, 4)] * 2
    assert {each.scores for each in records} == {"{}", '{"found": 1.0, "early": 0.5}'}, "one part is the reward itself"


def test_a_record_of_older_code_is_read_without_tokens_and_parts():
    (record,), _ = played([1], size=1)
    older = record.model_dump(exclude={"scores", "prompt_tokens", "completion_tokens"})
    assert EvaluatedEpisode.model_validate(older) == record


def test_every_sample_of_a_question_has_a_place_of_its_own():
    rows = [{"seed": 8, "question": "a"}, {"seed": 9, "question": "b"}]
    assert plays_of(rows, 2) == [Play(0, 8, "a", 0), Play(1, 8, "a", 1), Play(2, 9, "b", 0), Play(3, 9, "b", 1)]


def test_several_samples_of_a_greedy_model_are_refused():
    with pytest.raises(ValueError, match="decoding: sampled"):
        EvaluateSpec(samples=2)


@pytest.fixture
def local_model(chain_sum: EnvironmentSpec, tmp_path: Path) -> Callable[..., LocalModel]:
    """A tiny model that plays as an evaluation's settings say."""

    def make(seed: int = 0, **settings: Any) -> LocalModel:
        from apprentice.tasks.models.checkpoints import save
        from tests.tasks.test_one_prompt import tiny_model
        from tests.tokenizers import build_tokenizer

        tokenizer = build_tokenizer(chain_sum, ["1 + 1 =", "2 + 2 ="])
        save(tiny_model(tokenizer, positions=1024), tokenizer, tmp_path)
        return LocalModel(tmp_path, EvaluateSpec(**settings), PROTOCOLS["parity"], seed)

    return make


def test_a_sample_is_the_same_in_whatever_company_it_is_drawn(local_model: Callable[..., LocalModel]):
    """What a batch holds changes nothing, so an evaluation that was interrupted ends as one that was not."""
    model = local_model(decoding="sampled", max_new_tokens=8, samples=2)

    def episode(seed: int, sample: int) -> Episode:
        started = Episode(Player(Guess(Settings(dataset="chain_sum"))), seed)
        started.sample = sample
        return started

    seeds_and_samples = [(1, 0), (1, 1), (2, 0), (3, 0)]
    one_batch, alone = ([episode(*each) for each in seeds_and_samples] for _ in range(2))
    together = model.reply(one_batch)
    exclusive = [model.reply([each])[0] for each in reversed(alone)]
    assert together == exclusive[::-1]
    tokens = [(each.prompt_tokens, each.completion_tokens) for each in one_batch]
    assert tokens == [(each.prompt_tokens, each.completion_tokens) for each in alone], "padding is not counted"
    assert all(read > 10 and 1 <= wrote <= 8 for read, wrote in tokens)
    assert len({str(message) for message in together}) == len(seeds_and_samples), "samples differ, also of one question"


def test_an_evaluation_in_bf16_rounds_weights_and_cache_and_no_angle_of_a_position(
    local_model: Callable[..., LocalModel],
):
    import torch

    model = local_model(max_new_tokens=4, bf16=True)
    model.reply([Episode(Player(Guess(Settings(dataset="chain_sum"))), seed) for seed in (1, 2)])
    assert {weight.dtype for weight in model._model.parameters()} == {torch.bfloat16}
    assert {each.dtype for each in model._model.buffers()} == {torch.float32}
    assert {layer.keys.dtype for layer in model._prefix._layers} == {torch.bfloat16}


def test_samples_follow_the_model_s_probabilities(local_model: Callable[..., LocalModel]):
    """Chi-squared over 4,000 draws from four tokens at temperature 0.5."""
    import torch
    from scipy.stats import chisquare

    model = local_model(seed=7, decoding="sampled", temperature=0.5)
    scores = torch.tensor([0.1, 0.4, 0.2, 0.3]).log()
    episodes: Any = [Named(seed) for seed in range(4000)]
    drawn = model._noise(episodes)(scores.repeat(4000, 1), range(4000)).argmax(dim=1)
    expected = torch.softmax(scores / 0.5, dim=0) * 4000
    assert chisquare(torch.bincount(drawn, minlength=4).numpy(), expected.numpy()).pvalue > 1e-3


class Named:
    """As much of an episode as names its noise."""

    sample = turns = 0

    def __init__(self, seed: int):
        self.seed = seed


class TutorialGuess(Guess):
    """Takes a text as the answer, and keeps it."""

    given = ""

    def answer(self, answer: str) -> str:
        """Give the answer.

        Args:
            answer: The answer.

        Returns:
            Nothing.
        """
        self.given, self.done, self.reward = answer, True, 0.5
        return "OK."


@pytest.mark.parametrize(
    ("text", "given", "found"),
    [
        ('{"answer": "12"} and 7', "12", True),
        ('{"answer" : 12}', "12", True),
        ('{"answer": "x"} 3 or 45', "45", False),
        ("a1 then 6 ", "6", False),
        ("nothing", "0", False),
    ],
)
def test_the_tutorial_submits_the_digits_that_its_regular_expression_finds(
    text: str, given: str, found: bool, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(base, "tool_names", lambda kind: ["answer"])
    tutorial, environment = PROTOCOLS["tutorial"], TutorialGuess(Settings(dataset="chain_sum"))
    episode = tutorial.begin(Player(environment), 3)
    assert episode.tools == []
    episode.step({"role": "assistant", "content": text})
    assert (environment.given, episode.done) == (given, True)
    assert episode.causes == ([] if found else ["the regular expression found no answer"])
    assert (tutorial.tokens(7), PROTOCOLS["parity"].tokens(7)) == (TUTORIAL_TOKENS, 7)


def test_the_tutorial_is_for_environments_with_the_one_tool_answer():
    with pytest.raises(Stop, match=r"only environments with the single tool `answer`; this one has .*guess\."):
        PROTOCOLS["tutorial"].begin(Player(Guess(Settings(dataset="chain_sum"))), 3)


def test_the_tutorial_prompts_without_tools_and_reads_text_without_special_tokens():
    class Tokenizer:
        def apply_chat_template(self, *given: Any, **how: Any) -> Any:
            return given, how

        def decode(self, *given: Any, **how: Any) -> Any:
            return given, how

    tutorial: Any = PROTOCOLS["tutorial"]
    episode: Any = SimpleNamespace(messages=["asked"])
    how = {"add_generation_prompt": True, "tokenize": True, "return_dict": False}
    assert tutorial.prompt_ids(Tokenizer(), episode) == ((["asked"],), how)
    said = (([1, 2],), {"skip_special_tokens": True})
    assert tutorial.read(Tokenizer(), [1, 2], [0], episode) == {"role": "assistant", "content": said}
    records: Any = [SimpleNamespace(score=each, is_right=each == 1.0) for each in (1.0, 0.5, 0.0)]
    assert (tutorial.accuracy(records), PROTOCOLS["parity"].accuracy(records)) == (0.5, pytest.approx(1 / 3))


def test_an_endpoint_answers_each_episode_under_its_seed_and_its_tokens_are_counted():
    requests: list[Any] = []

    def say(messages: Any, tools: Any, spent: Any, choice: str, seed: int) -> dict[str, Any]:
        requests.append((messages, tools, choice, seed, spent.raw))
        spent.prompt_tokens, spent.completion_tokens = 5, 7
        return {"content": f"answer {seed}"}

    episodes: Any = [
        SimpleNamespace(messages=[n], tools=["t"], wire={n: {}}, seed=n, prompt_tokens=10, completion_tokens=20)
        for n in (1, 2)
    ]
    player: Any = Endpoint(SimpleNamespace(say=say))  # type: ignore[arg-type]
    assert [each["content"] for each in player.reply(episodes)] == ["answer 1", "answer 2"]
    assert requests == [([n], ["t"], "auto", n, {n: {}}) for n in (1, 2)]
    assert [(each.prompt_tokens, each.completion_tokens) for each in episodes] == [(15, 27)] * 2
