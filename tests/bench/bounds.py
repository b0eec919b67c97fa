"""Computes what limits a collection, and the cost of the stages around it, from 300 to 10 million episodes.

In: figures.json, the measurements of `make bench NAME=…`. Out: the tables of SCALING.md, printed by
`python -m tests.bench.bounds`. `Collection` and `SIZES` hold the assumptions about a teacher.
"""

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

DEPLOYMENTS = Path(__file__).parents[2] / "deployments"
MEASURED = {name: each["value"] for name, each in json.loads((DEPLOYMENTS / "figures.json").read_text()).items()}

SESSIONS, REQUESTS, TOKENS, LOOP = "sessions ÷ latency", "requests per minute", "tokens per minute", "event loop"
"""The limits of a collection."""
PROMPT_USD, COMPLETION_USD = 0.25 / 1e6, 2.0 / 1e6
"""Assumed prices of the teacher, in dollars per token."""
PROMPT_TOKENS, COMPLETION_TOKENS = 200, 300
"""Assumed tokens per request, reasoning included."""


class Collection(NamedTuple):
    """A number of one-turn episodes, and the limits on their collection."""

    episodes: int
    sessions: int
    latency: float = 4.0
    """Assumed seconds per answer of a small hosted reasoning model."""
    requests_per_minute: float = math.inf
    tokens_per_minute: float = math.inf
    max_tokens: int = 1024
    """An endpoint counts this many tokens per answer when it admits a request."""

    def rates(self) -> dict[str, float]:
        """Return the episodes per second that each limit alone would allow."""
        loop = MEASURED["requests_a_second"]
        return {
            SESSIONS: self.sessions / (self.latency + 1 / loop),
            REQUESTS: self.requests_per_minute / 60,
            TOKENS: self.tokens_per_minute / 60 / (PROMPT_TOKENS + self.max_tokens),
            LOOP: loop,
        }

    def bounds(self) -> list[tuple[float, str]]:
        """Return the episodes per second under each limit, the tightest first."""
        return sorted((rate, bound) for bound, rate in self.rates().items())

    @property
    def seconds(self) -> float:
        """Duration of the collection, including the last answer."""
        return self.episodes / self.bounds()[0][0] + self.latency

    @property
    def usd(self) -> float:
        return self.episodes * (PROMPT_TOKENS * PROMPT_USD + COMPLETION_TOKENS * COMPLETION_USD)


SIZES = [
    Collection(episodes, sessions, requests_per_minute=requests, tokens_per_minute=tokens)
    for episodes, sessions, requests, tokens in (
        (300, 64, 500, 500_000),
        (3_000, 64, 500, 500_000),
        (30_000, 160, 5_000, 2_000_000),
        (300_000, 800, 10_000, 10_000_000),
        (3_000_000, 2_560, 30_000, 180_000_000),
        (10_000_000, 2_560, 30_000, 180_000_000),
    )
]
"""Assumed limits, as reported for gpt-5-mini from an account's lowest tier to the highest."""


def tables() -> str:
    made = {
        "Collection within a teacher's limits": _sizes_table(),
        "Episodes per second without such limits, by sessions": _bounds_table(),
        "3,000 episodes where the environment's server grants few sessions": _granted_table(),
        "The stages around it": _stages_table(),
    }
    return "\n\n".join(f"**{title}**\n\n{table}" for title, table in made.items())


def _sizes_table() -> str:
    rows = []
    for size in SIZES:
        (rate, bound), (next_rate, next_bound), *_ = size.bounds()
        limits = [f"{size.sessions:,}", f"{size.requests_per_minute:,}", f"{size.tokens_per_minute:,}"]
        found = [
            f"{rate:,.1f}",
            bound,
            f"{next_bound} ({next_rate / rate:.1f}×)",
            _time(size.seconds),
            f"{size.usd:,.2f}",
        ]
        rows.append([f"{size.episodes:,}", *limits, *found])
    head = ["episodes", "`server.sessions`", "`teacher.requests_per_minute`", "`teacher.tokens_per_minute`"]
    return _markdown([*head, "per second", "limited by", "next limit", "time", "teacher, USD"], rows)


def _bounds_table() -> str:
    playing = (1, 16, 64, 256, 1_024, 4_096)
    rows = []
    for latency in (0.05, 0.2, 1.0, 4.0, 20.0):
        found = [Collection(10_000, sessions, latency).bounds()[0] for sessions in playing]
        cells = [f"{rate:,.1f}" if bound == SESSIONS else f"{rate:,.0f} ({bound})" for rate, bound in found]
        rows.append([f"{latency:g} s", *cells])
    return _markdown(["latency", *(f"{sessions:,}" for sessions in playing)], rows)


def _granted_table() -> str:
    sizes = [SIZES[1]._replace(sessions=granted) for granted in (1, 4, 16, 64)]
    found = [
        [str(size.sessions), f"{size.bounds()[0][0]:.2f}", size.bounds()[0][1], _time(size.seconds)] for size in sizes
    ]
    return _markdown(["granted", "per second", "limited by", "time"], found)


def _stages_table() -> str:
    rows = []
    for episodes in (size.episodes for size in SIZES):
        names = ("question_s", "filter_s", "length_s", "task_run_s")
        memory = [MEASURED[f"{stage}_bytes"] + episodes * MEASURED[f"{stage}_bytes_an_episode"] for stage in MEASURING]
        seconds = [_time(episodes * MEASURED[name]) for name in names]
        rows.append([f"{episodes:,}", *seconds, *(f"{each / 1e9:.1f} GB" for each in memory)])
    head = ["episodes", "questions", "filter", "lengths", "if each were a Prefect task run"]
    return _markdown([*head, *(f"memory of {stage}" for stage in MEASURING)], rows)


MEASURING = ("collect", "lengths")
"""Stages whose memory was measured."""


def _markdown(head: list[str], rows: Iterable[list[str]]) -> str:
    return "\n".join("| " + " | ".join(line) + " |" for line in [head, ["---"] * len(head), *rows])


def _time(seconds: float) -> str:
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.1f} s"


if __name__ == "__main__":
    print(tables())
