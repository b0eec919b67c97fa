"""The teacher plays an episode for each seed, through the OpenAI client."""

from typing import Any

from apprentice.envs.base import ToolEnvironment, tools_text
from apprentice.envs.wire.waiting import wait_for
from apprentice.tasks.episodes.episode import Episode, problems
from tests.bench.scripts.given import Given, Row


def main(given: Given) -> None:
    from openai import AsyncOpenAI, DefaultAioHttpClient

    client = AsyncOpenAI(api_key="none", base_url=given.teacher_url, http_client=DefaultAioHttpClient())
    teacher = given.recipe.teacher
    assert teacher

    def ask(episode: Episode, number: int) -> Row:
        tools: Any = episode.tools
        messages: Any = episode.messages
        settings: Any = {"model": teacher.model, "tool_choice": "required", "parallel_tool_calls": False}
        settings["extra_body"] = {"seed": episode.seed, "ask": number}
        answer = wait_for(client.chat.completions.create(messages=messages, tools=tools, **settings)).choices[0].message
        calls = [call.model_dump(include={"id", "type", "function"}) for call in answer.tool_calls or []]
        return {"role": "assistant", "content": answer.content or "", "tool_calls": calls}

    def valid(episode: Episode) -> Row:
        """The first valid answer, or the last one."""
        message = ask(episode, 0)
        for number in range(1, given.recipe.collect.asks):
            if not problems(message, episode.tools):
                break
            message = ask(episode, number)
        return message

    def play(environment: ToolEnvironment, seed: int) -> Row:
        episode = Episode(environment, seed)
        while not episode.done:
            episode.step(valid(episode))
        return {"seed": seed, "messages": episode.messages, "tools": tools_text(environment), "reward": episode.reward}

    with given.pool() as pool:
        played = dict(pool.map(play, given.recipe.seed_windows().collect.seeds()))
    wait_for(client.close())
    given.write("rollouts.jsonl", [played[seed] for seed in sorted(played)])
