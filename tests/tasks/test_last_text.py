"""A text without a call ends an episode and is scored, in every stage alike, where the environment has `say`.

The order desk refunds young orders by a call and refuses old ones in a text. Its server, the teacher's endpoint, the
tokenizer and TRL's trainers are real.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from apprentice.envs.player import Player
from apprentice.envs.pool import EnvironmentPool
from apprentice.envs.wire.reply import BadReply
from apprentice.envs.wire.session import Session
from apprentice.tasks.analysis.outcomes import outcome_of, why_dropped
from apprentice.tasks.analysis.reward_hacking import answer_of
from apprentice.tasks.collect import play_one
from apprentice.tasks.dpo import preference
from apprentice.tasks.endpoints.budget import Budget
from apprentice.tasks.endpoints.teacher import Teacher
from apprentice.tasks.episodes.episode import Episode, last_text
from apprentice.tasks.episodes.record import EvaluatedEpisode, Record
from apprentice.tasks.episodes.rendering import IGNORED, labelled, parse, prompt_ids, row_ids, training_row
from apprentice.tasks.evaluate import rates
from apprentice.tasks.filter import Dropped
from apprentice.tasks.mix import _right
from apprentice.tasks.players.play import Endpoint as EndpointPlayer
from apprentice.tasks.players.play import Play, as_record, play_alone, play_batched
from apprentice.tasks.players.protocols import PROTOCOLS
from apprentice.tasks.rollouts.live_rollouts import LiveRollouts
from apprentice.tasks.rollouts.rollout_modes import by_factory
from apprentice.tasks.settings.endpoint import EndpointSpec, TeacherSpec
from apprentice.tasks.statistics.calibration import calibration
from tests.endpoint import KEY, Endpoint, call, say
from tests.served_desk import NEW, OLD, REFUSAL, ServedDesk, next_message, served_desk
from tests.tasks.episodes.test_episode import Guess, Settings
from tests.tasks.evaluations import episode as evaluated
from tests.tasks.test_one_prompt import generated, sft_ids
from tests.tokenizers import build_tokenizer

LOOK = [call("look_up", "{}")]
SEEDS = (5, 3, 7, 8)


@pytest.fixture(scope="module")
def desk() -> Iterator[ServedDesk]:
    with served_desk() as running:
        yield running


@pytest.fixture
def collected(desk: ServedDesk, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    """Plays a teacher's episode; gives its record and the endpoint."""
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    opened: list[Any] = []

    def once(seed: int, *turns: Any, **settings: Any) -> tuple[Record, Endpoint]:
        endpoint = Endpoint(*turns)
        spec = TeacherSpec.model_validate({"model": "toy"} | settings)
        teacher = Teacher(spec, endpoint.url, asks=3, budget=Budget(None, None, tmp_path / "spent"))
        player = desk.task.make(Session(desk.server))
        opened.extend([teacher, player])
        return play_one(player, seed, teacher, desk.task).record, endpoint

    yield once
    for each in opened:
        each.close()


# --- the teacher ------------------------------------------------------------------------------------------------------


def test_a_teachers_text_ends_the_episode_and_is_not_asked_for_again(collected: Any):
    record, endpoint = collected(OLD, LOOK, say(REFUSAL))
    assert (record.reward, record.failed_at, record.asked_again) == (1.0, "", "")
    assert record.messages[-1] == {"role": "assistant", "content": REFUSAL}
    assert [request["tool_choice"] for request in endpoint.requests] == ["auto", "auto"]
    assert json.loads(record.line())["takes_text"] is True


def test_a_teachers_call_that_could_not_be_read_is_no_last_text(collected: Any):
    record, _ = collected(NEW, LOOK, say('<tool_call>{"name": "refund"'), [call("refund", "{}")])
    assert (record.reward, record.asked_again) == (1.0, "no tool call")


@pytest.mark.parametrize(("keeps", "said"), [(False, REFUSAL), (True, f"<think>Old.</think>{REFUSAL}")])
def test_the_thoughts_before_a_teachers_text_are_not_scored_and_kept_as_the_recipe_says(
    collected: Any, keeps: bool, said: str
):
    record, _ = collected(OLD, LOOK, say(f"<think>Old.</think>{REFUSAL}"), keep_text=keeps)
    assert (record.reward, record.messages[-1]["content"]) == (1.0, said)
    assert why_dropped(record.model_dump(), set()) == ("leaked reasoning text" if keeps else None)


# --- an episode -------------------------------------------------------------------------------------------------------


def test_a_text_is_the_last_turn_of_an_episode_with_valid_form(desk: ServedDesk):
    episode = desk.played(OLD)
    assert (episode.done, episode.reward, episode.turns) == (True, 1.0, 2)
    assert (episode.valid, episode.causes, episode.unfinished) == (True, [], False)


@pytest.mark.parametrize(
    "message",
    [
        {"content": "No."},
        {"content": "  "},
        {"content": None},
        {"content": '{"name": "refund", "arguments": {}}'},
        {"content": "I " + "x" * 200_000},
    ],
    ids=["refused by the game", "empty", "none", "a call in words", "beyond the limits"],
)
def test_what_is_no_text_of_the_game_leaves_the_episode_unfinished(desk: ServedDesk, message: dict[str, Any]):
    episode = desk.episode(OLD)
    episode.step({"role": "assistant", **message})
    assert (episode.done, episode.unfinished, episode.reward, episode.valid) == (True, True, 0.0, False)
    assert episode.causes[-1] in ("no tool call", "an answer of more than 128 KiB")
    episode.player.close()


def test_where_the_environment_takes_no_text_the_episode_is_unfinished_as_before():
    episode = Episode(Player(Guess(Settings(dataset="chain_sum"))), 1)
    episode.step({"role": "assistant", "content": "42"})
    assert (episode.causes, episode.unfinished) == (["no tool call"], True)
    record = Record(seed=1, environment="e 1", messages=[], tools="[]", reward=1.0)
    assert "takes_text" not in json.loads(record.line())


def test_a_server_that_breaks_on_a_text_is_played_once_more_up_to_it(desk: ServedDesk):
    episode, calls = desk.episode(OLD), []
    environment, sent = episode.player.environment, episode.player.environment.session.step

    def breaks_once(action: dict[str, Any]) -> Any:
        calls.append(action["tool"])
        if calls == ["look_up", "say"]:
            raise BadReply("half a reply")
        return sent(action)

    environment.session.step = breaks_once  # type: ignore[method-assign]
    episode.step(next_message(episode.messages))
    episode.step(next_message(episode.messages))
    assert (calls, episode.reward) == (["look_up", "say", "look_up", "say"], 1.0)
    episode.player.close()


# --- filter, outcomes, figures ----------------------------------------------------------------------------------------


def test_a_right_text_is_kept_and_elsewhere_it_is_no_call(desk: ServedDesk):
    row = desk.record(OLD).model_dump()
    assert why_dropped(row, set()) is None
    assert why_dropped(row | {"takes_text": False}, set()) == "no tool call"
    assert why_dropped(row | {"reward": 0.0}, set()) == "wrong answer"
    in_the_middle = [*row["messages"][:2], {"role": "assistant", "content": "I wait."}, *row["messages"][2:]]
    assert why_dropped(row | {"messages": in_the_middle}, set()) == "no tool call"


@pytest.mark.parametrize(
    ("said", "cause"),
    [("First, I have to see it is 5 weeks old.", None), ("<think>So.</think> No.", "leaked reasoning text")],
)
def test_of_a_last_text_only_the_marks_of_thoughts_are_reasoning(desk: ServedDesk, said: str, cause: str | None):
    row = desk.record(OLD).model_dump()
    row["messages"][-1]["content"] = said
    assert why_dropped(row, set()) == cause


def test_the_teachers_text_is_compared_with_the_environments_answer(desk: ServedDesk, tmp_path: Path):
    rows = [desk.record(seed, correct=REFUSAL) for seed in (OLD, NEW)]
    (tmp_path / "rollouts.jsonl").write_bytes(b"".join(row.line() for row in rows))
    assert calibration(tmp_path, desk.task)["compared"]["same text, right"] == 1


def test_a_last_text_is_the_answer_of_an_evaluated_episode():
    texts = [{"role": "user", "content": "May I?"}, {"role": "assistant", "content": "No."}]
    assert answer_of(evaluated(1, 0.0, messages=texts)) == "No."
    assert answer_of(evaluated(1, 0.0, messages=texts, valid=False, causes=["no tool call"])) == ""


# --- evaluation -------------------------------------------------------------------------------------------------------


class Scripted:
    """A policy that refuses every order in the same words."""

    def reply(self, episodes: list[Episode]) -> list[dict[str, Any]]:
        look = next_message(episodes[0].messages[:2])
        refuse = {"role": "assistant", "content": REFUSAL}
        return [look if len(each.messages) == 2 else refuse for each in episodes]


@pytest.mark.parametrize("play", [play_batched, play_alone])
def test_an_evaluation_scores_texts_and_counts_them_as_valid(desk: ServedDesk, play: Any):
    records: list[EvaluatedEpisode] = []
    with EnvironmentPool(desk.task, desk.server, size=2) as pool:
        plays = [Play(place, seed, pool.players[0].ask(seed), 0) for place, seed in enumerate((OLD, NEW))]
        play(pool, plays, Scripted(), PROTOCOLS["parity"], records.append)
    records.sort(key=lambda record: record.place)
    assert [(each.reward, each.valid, each.turns, outcome_of(each)) for each in records] == [
        (1.0, True, 2, "right"),
        (0.0, True, 2, "wrong answer"),
    ]
    counted = rates(records, PROTOCOLS["parity"])
    assert (counted["format_compliance"], counted["accuracy"], counted["unfinished"]) == (1.0, 0.5, 0)


def test_the_students_own_right_texts_are_rows_for_the_next_sft(desk: ServedDesk):
    episode = desk.played(OLD)
    tried = as_record(episode, Play(0, OLD, episode.question, 0))
    (row,) = _right([tried], desk.task, 1, "the student", lambda _: None, Dropped())
    assert row.takes_text
    assert row.messages[-1]["content"] == REFUSAL


# --- law 1 ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def played(desk: ServedDesk) -> list[Episode]:
    return [desk.played(seed) for seed in SEEDS]


@pytest.fixture
def tokenizer(desk: ServedDesk, played: list[Episode]) -> Any:
    return build_tokenizer(desk.task, [episode.question for episode in played])


def test_sft_and_grpo_have_the_same_ids_and_learn_the_same_of_an_episode_that_ends_with_a_text(
    desk: ServedDesk, tokenizer: Any, played: list[Episode], tmp_path: Path
):
    with EnvironmentPool(desk.task, desk.server, size=len(played)) as pool, LiveRollouts(pool) as rollouts:
        trainer_class, how = by_factory(desk.task.make(), rollouts)
        made = generated(trainer_class, tokenizer, desk.task, played, tmp_path, how)
        rollouts.wait()
        assert [player.reward for player in rollouts.players] == [1.0] * len(played)
        assert rollouts.finish() == 0, "the environment ended them all"
    texts = 0
    for episode, rollout in zip(played, made, strict=True):
        concatenated = rollout["prompt_ids"] + rollout["completion_ids"]
        sft = sft_ids(tokenizer, episode, tmp_path)
        assert sft[: len(concatenated)] == concatenated
        if episode.messages[-1]["role"] == "assistant":
            texts += 1
            assert tokenizer.decode(sft[len(concatenated) :]) == "\n", "there is no closing turn after a text"
            labels = labelled(tokenizer, training_row(episode.messages, episode.tools, takes_text=True))["labels"]
            learned = [label != IGNORED for label in labels[len(rollout["prompt_ids"]) : len(concatenated)]]
            assert learned == rollout["learned"]
            assert tokenizer.decode(rollout["completion_ids"]).endswith(f"weeks old.{tokenizer.eos_token}")
    assert texts == 2


def test_a_student_built_here_writes_the_games_phrases_as_single_tokens(tokenizer: Any):
    ids = tokenizer.encode(REFUSAL)
    assert [tokenizer.decode([each]) for each in ids] == ["I cannot refund it: it is ", "5", " weeks old."]


def test_an_evaluation_reads_the_text_that_sft_wrote(tokenizer: Any, played: list[Episode]):
    episode = played[0]
    ids = row_ids(tokenizer, training_row(episode.messages, episode.tools, takes_text=True))
    prefix = prompt_ids(tokenizer, episode.messages[:-1], episode.tools)
    assert ids[: len(prefix)] == prefix
    turn = ids[len(prefix) : ids.index(tokenizer.eos_token_id, len(prefix)) + 1]
    read = parse(tokenizer, turn, prefix, episode.tools)
    assert last_text(read, episode.tools) == REFUSAL
    again = training_row([*episode.messages[:-1], read], episode.tools, takes_text=True)
    assert row_ids(tokenizer, again) == ids


def test_a_served_student_is_sent_the_prompt_of_training_before_its_text(
    desk: ServedDesk, tokenizer: Any, played: list[Episode], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    endpoint = Endpoint(LOOK, say(REFUSAL))
    spec = EndpointSpec(base_url=endpoint.url, model="toy", serves_student=True)
    teacher = Teacher(spec, endpoint.url, asks=1, budget=Budget(None, None, tmp_path / "spent"))  # type: ignore[arg-type]
    records: list[EvaluatedEpisode] = []
    with EnvironmentPool(desk.task, desk.server, size=1) as pool:
        play = Play(0, OLD, played[0].question, 0)
        play_alone(pool, [play], EndpointPlayer(teacher), PROTOCOLS["parity"], records.append)
    teacher.close()
    assert (records[0].reward, records[0].valid) == (1.0, True)
    request = endpoint.requests[-1]
    rendered = tokenizer.apply_chat_template(
        request["messages"],
        tools=request["tools"],
        add_generation_prompt=True,
        return_dict=False,
        **request["chat_template_kwargs"],
    )
    assert (
        rendered
        == row_ids(tokenizer, training_row(played[0].messages, played[0].tools, takes_text=True))[: len(rendered)]
    )
    assert rendered == prompt_ids(tokenizer, played[0].messages[:-1], played[0].tools)


def test_a_pair_for_dpo_ends_with_the_text_on_both_sides(desk: ServedDesk, tokenizer: Any):
    right, wrong = desk.record(OLD).model_dump(), desk.record(OLD).model_dump()
    wrong["messages"][-1]["content"] = "I will."
    row = preference(tokenizer, right, wrong)
    for side, said in (("chosen", REFUSAL), ("rejected", "I will.")):
        learned = [each for each, has in zip(row[f"{side}_ids"], row[f"{side}_loss"], strict=True) if has]
        assert tokenizer.decode(learned).endswith(f"{said}<|im_end|>")
        assert tokenizer.decode(row[f"{side}_ids"]).endswith(f"{said}<|im_end|>\n")
