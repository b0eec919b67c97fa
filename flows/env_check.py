"""Whether a server will do for an environment and a recipe, and how to mend it where it will not.

In: a server, an environment, how many sessions are needed. Out: findings, each with what to do about it.
"""

import asyncio
from collections.abc import Iterator
from statistics import median
from typing import Any, Literal, NamedTuple

from apprentice.envs.breaker import why
from apprentice.envs.catalog import CATALOGUE, EnvironmentSpec
from apprentice.envs.server import EnvironmentServer
from apprentice.envs.session import AtCapacity, Refused, SessionLost, connect
from apprentice.envs.space import Space
from apprentice.envs.waiting import wait_for
from apprentice.flows.env_probe import Seen, play_a_few
from apprentice.flows.recipe import Recipe

AT_ONCE = 16
"""Sessions that are opened together."""
PATIENCE = 10.0
"""Seconds for which a server may fail while it is looked at."""


class Needs(NamedTuple):
    """Sessions that a run holds at once."""

    grpo: int
    """It stops before it trains where there are fewer."""
    evaluate: int
    collect: int

    @staticmethod
    def of(recipe: Recipe) -> "Needs":
        grpo = recipe.grpo.sessions() * recipe.grpo.processes
        return Needs(grpo, recipe.evaluate.batch_size, recipe.env.sessions)

    def __str__(self) -> str:
        grpo = f"GRPO needs {self.grpo}, " if self.grpo else ""
        evaluate = f"an evaluation uses {self.evaluate}, " if self.evaluate else ""
        return f"{grpo}{evaluate}collection uses {self.collect}"


class Finding(NamedTuple):
    """One thing that was looked at."""

    what: str
    verdict: Literal["right", "slower", "wrong"]
    found: str
    fix: str = ""


class Checked(NamedTuple):
    """What was found."""

    findings: list[Finding]
    granted: int
    latency_ms: dict[str, float]

    @property
    def ok(self) -> bool:
        return all(finding.verdict != "wrong" for finding in self.findings)


def check(server: EnvironmentServer, spec: EnvironmentSpec, needs: Needs) -> Checked:
    """Looks no further where a thing is wrong on which the rest stands."""
    hurried = server.model_copy(update={"patience": min(PATIENCE, server.patience)})
    if (answered := answers(server)).verdict == "wrong":
        return Checked([answered], 0, {})
    granted, trouble = wait_for(_grant(hurried, max(needs)))
    if trouble:
        fix = f"Name the address of an OpenEnv server, such as that of: apprentice env serve {spec.name}"
        return Checked([answered, Finding("sessions", "wrong", f"it opens none: {trouble}", fix)], granted, {})
    sessions = _sessions(granted, needs)
    if not granted:
        return Checked([answered, sessions], 0, {})
    try:
        seen = play_a_few(spec, hurried)
    except Refused as refused:
        return Checked(
            [answered, sessions, _foreign(server, spec, f"it refuses a reset or a step: {refused}")], granted, {}
        )
    except SessionLost as lost:
        fix = "See the server's own log; check again."
        return Checked([answered, sessions, Finding("wire", "wrong", f"it went away: {lost}", fix)], granted, {})
    except Exception as error:  # whatever the class stumbles over in the replies of another environment
        found = f"its replies are not those of {spec.name} ({type(error).__name__}: {error})"
        return Checked([answered, sessions, _foreign(server, spec, found)], granted, {})
    latency = {"reset": 1000 * median(seen.resets)} | ({"step": 1000 * median(seen.steps)} if seen.steps else {})
    return Checked([answered, sessions, *_judged(seen, spec, latency)], granted, latency)


def answers(server: EnvironmentServer) -> Finding:
    """Whether an OpenEnv server is there."""
    import httpx

    runs = f"See that it runs there and that this machine reaches it.{_of_the_space(server)}"
    no_server = f"{server.url} is not the address of an OpenEnv server; a Space's is https://OWNER-NAME.hf.space"
    try:
        answer = httpx.get(f"{server.url}/health", timeout=server.message_timeout, follow_redirects=True)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        return Finding("health", "wrong", f"it does not answer ({type(error).__name__}: {error})", runs)
    if answer.status_code in (401, 403):
        return Finding("health", "wrong", f"it answers {answer.status_code}", "Make the Space public: it is private.")
    if answer.status_code >= 500:
        return Finding("health", "wrong", f"it answers {answer.status_code}: it sleeps, starts or fails", runs)
    if answer.status_code != 200 or "json" not in answer.headers.get("content-type", ""):
        return Finding("health", "wrong", f"/health is no OpenEnv server's (status {answer.status_code})", no_server)
    return Finding("health", "right", "it answers")


def calls_itself(server: EnvironmentServer) -> str:
    """The name that a server gives itself, such as EchoEnvironment; empty where it gives none."""
    import httpx

    try:
        told = httpx.get(f"{server.url}/metadata", timeout=server.message_timeout, follow_redirects=True).json()
    except (httpx.HTTPError, httpx.InvalidURL, ValueError):
        return ""
    return str(told.get("name") or "") if isinstance(told, dict) else ""


def known_as(name: str) -> str | None:
    """The environment of the catalogue that a server's name means."""
    plain = name.lower().removesuffix("environment").removesuffix("env").replace("_", "").replace("-", "")
    return next((each for each in CATALOGUE if each.replace("_", "") == plain), None)


async def _grant(server: EnvironmentServer, wanted: int) -> tuple[int, str]:
    """Sessions that it grants at once, up to those wanted, and what is wrong with it where it grants none."""
    clients: list[Any] = []
    try:
        while len(clients) < wanted:
            asked = min(AT_ONCE, wanted - len(clients))
            opened = await asyncio.gather(*(connect(server) for _ in range(asked)), return_exceptions=True)
            clients += [each for each in opened if not isinstance(each, BaseException)]
            if failed := [each for each in opened if isinstance(each, BaseException)]:
                told = next((why(each) for each in failed if not isinstance(each, AtCapacity)), "")
                return len(clients), "" if clients else told
    finally:
        await asyncio.gather(*(client.disconnect() for client in clients), return_exceptions=True)
    return len(clients), ""


def _sessions(granted: int, needs: Needs) -> Finding:
    most = max(needs)
    if granted >= most:
        return Finding("sessions", "right", f"it grants {granted} and more; {needs}")
    found = f"it grants {granted}; {needs}"
    fix = f"Raise max_concurrent_envs on the server (MAX_CONCURRENT_ENVS={most}; env serve --max-sessions {most})"
    if granted < needs.grpo:
        return Finding("sessions", "wrong", found, f"{fix}, or lower grpo.batch_size × grpo.gradient_accumulation.")
    if not granted:
        return Finding("sessions", "wrong", found, f"{fix}, or wait until other runs have ended.")
    return Finding("sessions", "slower", found, f"{fix}; a run goes on with fewer, more slowly.")


def _judged(seen: Seen, spec: EnvironmentSpec, latency: dict[str, float]) -> Iterator[Finding]:
    newer = f"Serve this version of it: apprentice env serve {spec.name}"
    yield Finding("wire", "right", f"reset and step are those of {spec.name}")
    if seen.questions != seen.again:
        yield Finding("seeds", "wrong", "the same seed asked two different questions", newer)
    elif len(set(seen.questions)) == 1:
        yield Finding("seeds", "wrong", f"{len(seen.questions)} seeds asked one and the same question", newer)
    else:
        yield Finding("seeds", "right", "the same seed asked the same question in two sessions")
    if odd := [reward for reward in seen.rewards if reward is None or not 0.0 <= reward <= 1.0]:
        yield Finding("reward", "wrong", f"a reward was {odd[0]}, not 0 to 1", newer)
    else:
        yield Finding("reward", "right", f"rewards were {min(seen.rewards):g} to {max(seen.rewards):g}")  # type: ignore[type-var]
    if "step" not in latency:
        yield Finding("step", "wrong", "no step was played: the tool sent none", "Name other settings, or a recipe.")
    took = ", ".join(f"a {what} {each:.1f} ms" for what, each in latency.items())
    yield Finding("latency", "right", f"{took} (median of {len(seen.resets)} and {len(seen.steps)})")


def _foreign(server: EnvironmentServer, spec: EnvironmentSpec, found: str) -> Finding:
    name = calls_itself(server)
    told = f"; it calls itself {name}" if name else ""
    other = known_as(name)
    fix = (
        f"It serves another environment: --environment {other}"
        if other and other != spec.name
        else (f"Name a server of {spec.name}, such as that of: apprentice env serve {spec.name}")
    )
    return Finding("wire", "wrong", found + told, fix)


def _of_the_space(server: EnvironmentServer) -> str:
    """What is known of the Space; a sleeping one is woken by having been asked."""
    if server.space:
        space = Space(server.space)
        space.wake()
        return f" {space}."
    if ".hf.space" in server.url:
        return " A sleeping Space wakes when it is asked: check again in a minute; a paused one its owner starts."
    return ""
