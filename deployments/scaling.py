"""What a run costs in time and money, from 300 to 10 million episodes and from 1 to 64 GPUs, and what bounds it.

In: a `Size`: how much is wanted, a recipe's settings, what is assumed about the world around it. Out: an `Estimate`:
seconds of each stage and what bounds it, dollars, requests, memory and disk.
Why: where a bound lies is found out before it is paid for. `python -m apprentice.deployments.scaling` prints the tables
of SCALING.md; `make bench-scaling` compares the model with what this machine reaches.

A constant is either measured, and says by which bench, or assumed, and says ASSUMED.
"""

import heapq
import math
import random
from collections.abc import Iterable
from operator import attrgetter
from statistics import NormalDist
from typing import NamedTuple

from apprentice.envs.server import EnvironmentServer
from apprentice.tasks.specs import CollectSpec, EvaluateSpec, Prices, ProbeSpec, TeacherSpec
from apprentice.tasks.training_specs import GrpoSpec, SftSpec

# --- measured on two cores --------------------------------------------------------------------------------------------

LOOP_S = 1 / 980
"""Of our event loop for one request: `make bench-collect`, 64 sessions, no latency, servers on the same two cores."""
SERVER_S = 1 / 2500
"""Of one environment server for one turn, sessions reused: a client of OpenEnv's alone against one server process."""
OPEN_S = 0.0024
"""To open a session: the same server makes 355 episodes a second where each has a session of its own."""
LEASE_S = 0.06
"""To take a session's place in a limit shared through Prefect: 40 to 80 ms for each `concurrency`."""
RESET_S = 1 / 1400
"""To ask one question's text: 1,500 of them, with other work on the machine; `make bench-scaling` does it anew."""
WRITE_S = 10e-6
"""To publish one episode that was played: 3,000 of them, likewise."""
FILTER_S = 45e-6
"""To judge one episode: likewise."""
LENGTHS_S = 260e-6
"""To render one episode and count its tokens: 400 of them, likewise."""
TASK_RUN_S = 0.034
"""Of a Prefect server for one trivial task run; 0.011 for the temporary server of a single run."""
TEMPORARY_TASK_RUN_S = 0.011
FLOW_RUN_S = 1.07
"""Of one empty flow run with heartbeats."""
DISPATCH_S = 8.0
"""From the dispatch of a GPU stage to its start on a process worker. A pod of Kubernetes takes longer."""
LINE_BYTES = 1161
"""Of one episode of one turn in rollouts.jsonl."""
TURN_BYTES = 300
"""Of each further turn. ASSUMED."""
QUESTION_BYTES = 628
"""Of memory for one seed while `questions` holds the texts of all windows (tracemalloc, 20,000 seeds)."""
QUESTION_LINE_BYTES = 140
"""Of one line in questions.jsonl."""
BASE_BYTES = {"questions": 400e6, "collect": 512e6, "filter": 489e6, "lengths": 613e6, "sft": 2e9, "verdict": 500e6}
"""Of a process that plays one stage over few episodes: `make bench-collect` for collect, filter and lengths; others
ASSUMED."""
EPISODE_BYTES = {"collect": 100.0, "filter": 0.0, "lengths": 270.0, "verdict": 300.0}
"""Of memory for each episode: `make bench-collect`, 100,000 episodes against 1,000; the verdict's by tracemalloc."""
ROW_BYTES = 8_000
"""Of memory for each row of SFT, which parses all of them: 7.1 kB by tracemalloc, and the dataset made of them."""

# --- what libraries and services do -----------------------------------------------------------------------------------

CONNECTIONS_A_CLIENT = 1000
"""The OpenAI client's own limit (DEFAULT_CONNECTION_LIMITS); a shard has one client."""
BURST_S = 1.0
"""The limits of a teacher let one second's worth through at once (tasks/limits.py)."""
RENEWAL_S = 45.0
"""Prefect renews a lease of 60 s after three quarters of it, from a thread of its own for each lease."""
HUB_API_IN_5_MINUTES = 1_000
"""ASSUMED, as published for a free account in 2026; PRO has 2,500 (https://huggingface.co/docs/hub/rate-limits)."""
HUB_COMMITS_AN_HOUR = 128
"""ASSUMED, from the Hub's own message ("rate limit for repository commits (128 per hour)"); for one repository."""
HUB_API_AN_ARTIFACT = 10
"""Create, validate the card, preupload, LFS batch, commit, tag; two look-ups by key; two for who fetches it. The first
six as huggingface_hub 2.4 asked a local server; none of it measured on the Hub, for which there is no store yet."""
HUB_REQUEST_S = 0.1
"""ASSUMED."""
UPLOAD_BYTES_S = 50e6
"""ASSUMED: to the Hub."""

# --- assumed of GPUs: an A100 80 GB and Qwen3-1.7B --------------------------------------------------------------------

PEAK_FLOPS = 312e12
"""Published: an A100 in bf16."""
UTILISATION = 0.35
"""ASSUMED: of the peak, within a forward and backward pass."""
MICRO_BATCH_S = 1.06
"""ASSUMED: what a pass takes beside arithmetic. With it SFT's tutorial (270 rows, 3 epochs, batches of 4) comes to
"about 5 minutes"."""
DECODE_S = 0.076
"""ASSUMED: one token of each text of a batch, by transformers' `generate`. With it GRPO's tutorial (150 steps of 4
completions of 256 tokens) comes to "about an hour". vLLM is several times faster; GRPO does not use it yet."""
GENERATION_BATCH = 64
"""ASSUMED: texts generated at once for the time of one; more take turns."""
LOAD_S = 30.0
"""ASSUMED: imports and the weights, once a stage."""
CHECKPOINT_BYTES = 12
"""A parameter of a trainer's checkpoint: weights and Adam's two moments in fp32."""
DISK_BYTES_S = 1e9
"""ASSUMED: to the store."""
GPU_USD_HOUR = 2.0
"""ASSUMED: an A100 80 GB in a public cloud."""

LATENCY = "teacher's latency"
REQUESTS = "teacher's requests a minute"
TOKENS = "teacher's tokens a minute"
SESSIONS = "sessions"
CONNECTIONS = "connections of a client"
LOOP = "our own loop"
SERVER = "environment server"
CORE = "one core"
GPU = "GPU"
DISK = "disk"
HUB = "Hub requests"
UPLOAD = "upload"
PREFECT = "Prefect task runs"


class World(NamedTuple):
    """What a recipe does not say. All of it ASSUMED: put your own figures in."""

    latency: float = 4.0
    """Seconds for one answer of the teacher, on average: a small hosted model that reasons."""
    spread: float = 0.5
    """Standard deviation of the latency over its mean; latencies are log-normal."""
    failing: float = 0.01
    """Share of the requests that are answered with 429 or 500 and sent again."""
    prompt_tokens: int = 200
    completion_tokens: int = 300
    """Of one request, reasoning included."""
    turns: int = 1
    """Requests of one episode, those that fail not counted."""
    granted: int = 10_000
    """Sessions that the environment's server grants: its max_concurrent_envs. Public Spaces often grant few."""
    servers: int = 1
    """Processes of the environment server behind its URL."""
    loops: int = 1
    """Processes that collect. As built 1: shards are threads on one loop, unless the flow is given a task runner with
    processes."""
    row_tokens: int = 350
    """Of one training text."""
    kept: float = 0.9
    """Share of the episodes that the filter keeps."""
    parameters: float = 1.7e9
    guards: int = 1


class Size(NamedTuple):
    """One run: how much is wanted, with a recipe's own settings."""

    episodes: int
    gpus: int = 1
    env: EnvironmentServer = EnvironmentServer(shared=False)
    collect: CollectSpec = CollectSpec()
    teacher: TeacherSpec = TeacherSpec()
    sft: SftSpec = SftSpec()
    grpo: GrpoSpec = GrpoSpec()
    evaluate: EvaluateSpec = EvaluateSpec()
    probe: ProbeSpec = ProbeSpec()
    world: World = World()


class Part(NamedTuple):
    """One stage."""

    name: str
    seconds: float
    bound: str


class Estimate(NamedTuple):
    """One run."""

    parts: list[Part]
    hub: Part
    """What a store on the Hub would add; there is none yet."""
    teacher_usd: float
    gpu_usd: float
    task_runs: int
    prefect_requests_s: float
    """To a Prefect server that other runs use, while it collects: leases renewed, limits bought by the second."""
    hub_requests: int
    memory: tuple[float, str]
    """Bytes of the stage that needs most of the machine's own memory, and its name."""
    disk: float
    """Bytes that are left in the store, and a trainer's last checkpoints."""

    @property
    def seconds(self) -> float:
        return sum(part.seconds for part in self.parts)

    @property
    def longest(self) -> Part:
        return max(self.parts, key=lambda part: part.seconds)

    def of(self, *names: str) -> float:
        return sum(part.seconds for part in self.parts if part.name in names)


# --- collection -------------------------------------------------------------------------------------------------------


def in_use(size: Size) -> tuple[int, str]:
    """How many sessions play, and what keeps them from being more."""
    return min(
        (size.env.sessions, LATENCY),  # more could be asked for
        (size.world.granted, SESSIONS),
        (CONNECTIONS_A_CLIENT * size.collect.shards, CONNECTIONS),
    )


def asks(size: Size) -> float:
    """Requests an episode, those that are sent again included."""
    return size.world.turns / (1 - size.world.failing)


def episode_s(size: Size) -> float:
    """Seconds of one episode that waits for nobody else."""
    backoff = 0.25 * size.world.failing  # uniform from 0 to 0.5 s at first
    return asks(size) * (size.world.latency + LOOP_S / size.world.loops + backoff) + size.world.turns * SERVER_S


def rates(size: Size) -> dict[str, float]:
    """Episodes a second that each bound would allow by itself."""
    sessions, kept_from = in_use(size)
    tokens = size.world.prompt_tokens + size.teacher.max_tokens  # as endpoints and tasks/teacher.py count
    return {
        kept_from: sessions / episode_s(size),
        REQUESTS: (size.teacher.requests_per_minute or math.inf) / 60 / asks(size),
        TOKENS: (size.teacher.tokens_per_minute or math.inf) / 60 / asks(size) / tokens,
        LOOP: size.world.loops / LOOP_S / asks(size),
        SERVER: size.world.servers / SERVER_S / size.world.turns,
    }


def slowest(size: Size) -> tuple[float, str]:
    """Episodes a second in the long run, and what bounds them."""
    return min((rate, bound) for bound, rate in rates(size).items())


def opening_s(size: Size) -> float:
    """Between one session and the next; shards open theirs at the same time, on one loop."""
    return OPEN_S + (LEASE_S / size.collect.shards if size.env.shared else 0.0)


def play_seconds(size: Size) -> float:
    """To play all episodes, from the first session's opening to the last answer: the closed formula.

    The last episode begins when the sessions, the teacher's limits, the loop and the server have let all others begin;
    what still runs then is waited for.
    """
    sessions, _ = in_use(size)
    one, opening = episode_s(size), opening_s(size)
    allowed = rates(size)
    opened = min(sessions, math.sqrt(2 * size.episodes * one / opening))  # or it is over before all are open
    half_played = one * (1 + size.world.spread**2 / size.world.turns) / 2
    begun = size.episodes * one / opened + opened * opening / 2 - half_played
    if size.episodes <= sessions:
        begun = min(begun, size.episodes * opening)
    begun = max(
        begun,
        size.episodes / min(allowed[REQUESTS], allowed[TOKENS]) - BURST_S,
        size.episodes / min(allowed[LOOP], allowed[SERVER]),
    )
    return begun + _slow(size, min(sessions, size.episodes, slowest(size)[0] * one))


def _slow(size: Size, of: float) -> float:
    """Seconds of the slowest of so many episodes, about."""
    variance = math.log1p(size.world.spread**2 / size.world.turns)
    beyond = NormalDist().inv_cdf(1 - 0.56 / max(of, 1.2))
    return episode_s(size) * math.exp(math.sqrt(variance) * beyond - variance / 2)


def simulated_seconds(size: Size, seed: int = 0) -> float:
    """The same by playing it through: each session asks, waits for its turn on the loop and in the limits, for the
    answer, and for the environment. What the formula leaves out is in it: queues, and chance."""
    drawn = random.Random(seed)
    world = size.world
    variance = math.log1p(world.spread**2)
    location, scale = math.log(world.latency) - variance / 2, math.sqrt(variance)
    tokens = world.prompt_tokens + size.teacher.max_tokens
    a_minute = [
        size.teacher.requests_per_minute,
        size.teacher.tokens_per_minute and size.teacher.tokens_per_minute / tokens,
    ]
    gap = max([60 / limit for limit in a_minute if limit], default=0.0)
    sessions, _ = in_use(size)
    events = [(place * opening_s(size), place, False) for place in range(sessions)]  # time, session, is an answer
    turns, failures = [0] * sessions, [0] * sessions
    begun = 0
    end = loop_free = server_free = slot = 0.0
    while events:
        now, session, is_answer = heapq.heappop(events)
        if is_answer and drawn.random() < world.failing:
            failures[session] += 1
            wait = drawn.uniform(0.0, min(0.5 * 2.0 ** (failures[session] - 1), 20.0))
            heapq.heappush(events, (now + wait, session, False))
        elif is_answer:
            failures[session] = 0
            turns[session] -= 1
            server_free = max(server_free, now) + SERVER_S / world.servers
            end = max(end, server_free)
            heapq.heappush(events, (server_free, session, False))
        elif turns[session] or begun < size.episodes:
            if not turns[session]:
                begun += 1
                turns[session] = world.turns
            loop_free = max(loop_free, now) + LOOP_S / world.loops
            slot = max(slot, loop_free)
            sent = max(loop_free, slot - BURST_S)
            slot += gap
            heapq.heappush(events, (sent + drawn.lognormvariate(location, scale), session, True))
    return end


# --- the other stages -------------------------------------------------------------------------------------------------


def estimate(size: Size, together: bool = False) -> Estimate:
    """The whole run. `together`: as if one stage used all GPUs, which is not built; otherwise each stage uses one."""
    world = size.world
    gpus = size.gpus if together else 1
    completions = size.grpo.batch_size * size.grpo.gradient_accumulation
    rows = min(size.episodes * world.kept, size.sft.max_rows or math.inf)
    seeds = size.episodes + size.grpo.max_steps * completions // size.grpo.num_generations + 2 * size.evaluate.questions
    models = 3 + 2 * world.guards
    rungs = len(size.grpo.auto_difficulty)
    probes = (rungs or 1) if size.probe.questions else 0
    artifacts = 10 + rungs + 2 * probes + size.collect.shards + 3 + 3 * world.guards  # one task run makes each
    lines = LINE_BYTES + TURN_BYTES * (world.turns - 1)
    # rollouts stand in the store as shards, as a whole, and as what was kept
    stored = seeds * QUESTION_LINE_BYTES + size.episodes * lines * (2 + world.kept) + 4 * 4 * world.parameters
    on_gpus = [_sft(size, rows, gpus), _grpo(size, completions, gpus), _evaluate(size, models, probes, gpus)]
    parts = [
        Part("questions", seeds * RESET_S / world.servers, SERVER),
        Part("collect", play_seconds(size) + size.episodes * WRITE_S, slowest(size)[1]),
        Part("filter", size.episodes * FILTER_S, CORE),
        Part("lengths", size.episodes * world.kept * LENGTHS_S, CORE),
        *on_gpus,
        Part("Prefect", artifacts * TASK_RUN_S + (2 + models + probes) * (DISPATCH_S + FLOW_RUN_S), PREFECT),
    ]
    held = {name: BASE_BYTES[name] + size.episodes * each for name, each in EPISODE_BYTES.items()}
    held["sft"] = BASE_BYTES["sft"] + rows * ROW_BYTES + 4 * world.parameters  # weights pass through on their way
    held["questions"] = BASE_BYTES["questions"] + seeds * QUESTION_BYTES
    limits = [size.teacher.requests_per_minute, size.teacher.tokens_per_minute]
    leases = in_use(size)[0] / RENEWAL_S if size.env.shared else 0.0
    return Estimate(
        parts=parts,
        hub=_hub(size, artifacts, stored),
        teacher_usd=teacher_usd(size),
        gpu_usd=sum(part.seconds for part in on_gpus) / 3600 * gpus * GPU_USD_HOUR,
        task_runs=artifacts,
        prefect_requests_s=leases + size.collect.shards * sum(limit is not None for limit in limits),
        hub_requests=artifacts * HUB_API_AN_ARTIFACT,
        memory=max((needed, name) for name, needed in held.items()),
        disk=stored + 3 * CHECKPOINT_BYTES * world.parameters,
    )


def teacher_usd(size: Size) -> float:
    """What the teacher's tokens cost; answers of 429 and 500 cost nothing."""
    prices = size.teacher.prices or Prices(prompt=0.0, completion=0.0)
    an_ask = size.world.prompt_tokens * prices.prompt + size.world.completion_tokens * prices.completion
    return size.episodes * size.world.turns * an_ask / 1e6


def _pass_s(size: Size, tokens: float) -> float:
    """One forward and backward pass over so many tokens on one GPU."""
    return MICRO_BATCH_S + 6 * size.world.parameters * tokens / (PEAK_FLOPS * UTILISATION)


def _share(gpus: int) -> float:
    """What a GPU among several does of what it does alone. ASSUMED: 90% within a machine, 75% across machines."""
    return 1.0 if gpus == 1 else 0.9 if gpus <= 8 else 0.75


def _sft(size: Size, rows: float, gpus: int) -> Part:
    spec = size.sft
    gpus = min(gpus, spec.gradient_accumulation)  # the batch is the recipe's: more GPUs find no work in it
    steps = rows * spec.epochs / (spec.batch_size * spec.gradient_accumulation)
    a_step = _pass_s(size, spec.batch_size * size.world.row_tokens) * spec.gradient_accumulation / gpus / _share(gpus)
    saving = _saving(size, spec.checkpoint_steps)
    return Part("sft", LOAD_S + steps * (a_step + saving), GPU if a_step > saving else DISK)


def _grpo(size: Size, completions: int, gpus: int) -> Part:
    spec = size.grpo
    gpus = min(gpus, spec.gradient_accumulation)
    waves = math.ceil(completions / gpus / GENERATION_BATCH)
    generating = waves * spec.max_completion_length * DECODE_S
    a_pass = _pass_s(size, spec.batch_size * (size.world.prompt_tokens + spec.max_completion_length))
    a_step = generating + a_pass * spec.gradient_accumulation / gpus / _share(gpus)
    saving = _saving(size, spec.checkpoint_steps)
    return Part("grpo", LOAD_S + spec.max_steps * (a_step + saving), GPU if a_step > saving else DISK)


def _saving(size: Size, checkpoint_steps: int) -> float:
    """Seconds a step that its trainer's checkpoints take."""
    return CHECKPOINT_BYTES * size.world.parameters / DISK_BYTES_S / checkpoint_steps


def _evaluate(size: Size, models: int, probes: int, gpus: int) -> Part:
    spec = size.evaluate
    at_once = min(spec.batch_size, GENERATION_BATCH) * gpus
    a_wave = size.world.turns * DECODE_S
    seconds = math.ceil(spec.questions * spec.samples / at_once) * a_wave * spec.max_new_tokens
    probing = math.ceil(size.probe.questions / at_once) * a_wave * size.grpo.max_completion_length
    return Part("evaluate", models * (LOAD_S + seconds) + probes * (LOAD_S + probing), GPU)


def _hub(size: Size, artifacts: int, stored: float) -> Part:
    """Uploads, and waits for the Hub's limits: what goes beyond one window waits for the next ones."""
    asked = artifacts * HUB_API_AN_ARTIFACT
    commits = size.collect.shards - 1  # shards stand in one repository
    waiting = max(300.0 * (asked // HUB_API_IN_5_MINUTES), 3600.0 * (commits // HUB_COMMITS_AN_HOUR))
    talking, sending = asked * HUB_REQUEST_S + waiting, stored / UPLOAD_BYTES_S
    return Part("Hub", talking + sending, HUB if talking > sending else UPLOAD)


def runs_a_day(size: Size) -> tuple[float, str]:
    """Runs like this that all GPUs carry side by side, one GPU a stage, on one teacher's account and one environment
    server; and what bounds them."""
    made = estimate(size)
    a_second = size.gpus / made.of("sft", "grpo", "evaluate")
    allowed = rates(size)
    shared = [(allowed[bound] / size.episodes, bound) for bound in (REQUESTS, TOKENS, SERVER)]
    fewest, bound = min([(a_second, GPU), *shared])
    return 86400 * fewest, bound


# --- the tables -------------------------------------------------------------------------------------------------------

GPUS = (1, 8, 64)
SIMULATED = 30_000
"""Episodes that the tables simulate at most; thrice, with seeds of their own."""
PRICES = Prices(prompt=0.25, cached=0.025, completion=2.0)
"""ASSUMED: published for gpt-5-mini."""


def _size(episodes: int, *row: int) -> Size:
    """A row of SIZES."""
    sessions, shared, shards, requests, tokens, usd, epochs, rows, of, saved, steps, completions, each, group, asked = (
        row
    )
    return Size(
        episodes,
        env=EnvironmentServer(sessions=sessions, shared=bool(shared)),
        collect=CollectSpec(shards=shards),
        teacher=TeacherSpec(requests_per_minute=requests, tokens_per_minute=tokens, budget_usd=usd, prices=PRICES),
        sft=SftSpec(epochs=epochs, batch_size=rows, gradient_accumulation=of, checkpoint_steps=saved, bf16=True),
        grpo=GrpoSpec(
            max_steps=steps,
            batch_size=completions,
            gradient_accumulation=each,
            num_generations=group,
            checkpoint_steps=50,
            bf16=True,
        ),
        evaluate=EvaluateSpec(questions=asked),
    )


# Requests and tokens a minute: ASSUMED, as reported for gpt-5-mini in the tiers 1, 1, 2, 4, 5, 5 of OpenAI's accounts.
SIZES = {
    row[0]: _size(*row)
    for row in (
        # episodes; sessions, shared, shards; the teacher's limits, USD;    SFT;            GRPO;              questions
        (300, 64, 1, 1, 500, 500_000, 1, 3, 4, 2, 100, 150, 1, 4, 2, 400),
        (3_000, 64, 1, 1, 500, 500_000, 4, 3, 8, 2, 100, 150, 16, 4, 8, 1_000),
        (30_000, 160, 1, 1, 5_000, 2_000_000, 40, 3, 16, 4, 200, 300, 16, 16, 8, 1_000),
        (300_000, 800, 0, 1, 10_000, 10_000_000, 300, 1, 32, 8, 200, 500, 16, 32, 8, 2_000),
        (3_000_000, 2_560, 0, 4, 30_000, 180_000_000, 3_000, 1, 32, 64, 200, 1_000, 16, 64, 8, 2_000),
        (10_000_000, 2_560, 0, 4, 30_000, 180_000_000, 10_000, 1, 32, 64, 200, 1_000, 16, 64, 8, 2_000),
    )
}
"""Each number of episodes with the settings for it; the first of SCALING.md's tables names them."""


def tables() -> str:
    """All tables of SCALING.md, as Markdown."""
    made = [
        ("Settings", _settings_table()),
        ("Collection with these settings", _collection_table()),
        ("Episodes a second where the teacher sets no limit, by sessions that play", _bounds_table()),
        ("3,000 episodes where the environment's server grants few sessions", _granted_table()),
        ("One run as built: one GPU a stage", _runs_table()),
        ("Many GPUs", _gpus_table()),
        ("Prefect, Hub, memory, disk", _upkeep_table()),
    ]
    return "\n\n".join(f"**{title}**\n\n{table}" for title, table in made)


SHOWN = (
    *("env.sessions", "env.shared", "collect.shards"),
    *("teacher.requests_per_minute", "teacher.tokens_per_minute", "teacher.budget_usd"),
    *("sft.epochs", "sft.batch_size", "sft.gradient_accumulation", "sft.checkpoint_steps", "sft.bf16"),
    *("grpo.max_steps", "grpo.batch_size", "grpo.gradient_accumulation", "grpo.num_generations"),
    *("grpo.checkpoint_steps", "grpo.bf16", "evaluate.questions"),
)
"""The settings that differ from a recipe's defaults."""


def _settings_table() -> str:
    rows = []
    for name in SHOWN:
        values = [attrgetter(name)(size) for size in SIZES.values()]
        rows.append(
            [f"`{name}`", *(str(each).lower() if isinstance(each, bool) else f"{each:,.0f}" for each in values)]
        )
    return _markdown(["episodes", *(f"{episodes:,}" for episodes in SIZES)], rows)


def _collection_table() -> str:
    rows = []
    for episodes in SIZES:
        size = SIZES[episodes]
        (rate, bound), (next_rate, next_bound) = sorted((each, name) for name, each in rates(size).items())[:2]
        few = size._replace(episodes=min(episodes, SIMULATED))
        simulated = sum(simulated_seconds(few, seed) for seed in range(3)) / 3
        rows.append(
            [
                f"{episodes:,}",
                f"{rate:,.1f}",
                bound,
                f"{next_bound} ({next_rate / rate:.1f}×)",
                _time(estimate(size).of("collect")),
                f"{simulated / play_seconds(few):.2f}",
                f"{teacher_usd(size):,.2f}",
            ]
        )
    head = ["episodes", "a second", "bound by", "next bound", "time", "simulated ÷ formula", "teacher, USD"]
    return _markdown(head, rows)


def _bounds_table() -> str:
    playing = (1, 16, 64, 256, 1_024, 4_096)
    rows = []
    for latency in (0.05, 0.2, 1.0, 4.0, 20.0):
        cells = []
        for sessions in playing:
            server = EnvironmentServer(sessions=sessions, shared=False)
            size = Size(10_000, env=server, collect=CollectSpec(shards=8), world=World(latency=latency))
            rate, bound = slowest(size)
            cells.append(f"{rate:,.1f}" if bound == LATENCY else f"{rate:,.0f} ({bound})")
        rows.append([f"{latency:g} s", *cells])
    return _markdown(["latency", *(f"{sessions:,}" for sessions in playing)], rows)


def _granted_table() -> str:
    rows = []
    for granted in (1, 4, 16, 64):
        size = SIZES[3_000]._replace(world=World(granted=granted))
        rate, bound = slowest(size)
        rows.append([str(granted), f"{rate:.2f}", bound, _time(estimate(size).of("collect"))])
    return _markdown(["granted", "a second", "bound by", "time"], rows)


def _runs_table() -> str:
    rows = []
    for episodes in SIZES:
        made = estimate(SIZES[episodes])
        stages = [_time(made.of(name)) for name in ("questions", "collect", "sft", "grpo", "evaluate")]
        others = _time(made.of("filter", "lengths", "Prefect"))
        bound = f"{made.longest.name}: {made.longest.bound}"
        usd = [f"{made.teacher_usd:,.2f}", f"{made.gpu_usd:,.2f}"]
        rows.append([f"{episodes:,}", *stages, others, _time(made.seconds), bound, *usd])
    head = ["episodes", "questions", "collect", "SFT", "GRPO", "evaluate", "the rest", "whole run", "longest, bound by"]
    return _markdown([*head, "teacher, USD", "GPU, USD"], rows)


def _gpus_table() -> str:
    rows = []
    for episodes in SIZES:
        for gpus in GPUS:
            size = SIZES[episodes]._replace(gpus=gpus)
            a_day, bound = runs_a_day(size)
            made = estimate(size, together=True)
            together = [_time(made.seconds), f"{made.longest.name}: {made.longest.bound}", f"{made.gpu_usd:,.0f}"]
            rows.append([f"{episodes:,}", str(gpus), f"{a_day:,.1f}", bound, *together])
    head = [
        "episodes",
        "GPUs",
        "as built: runs a day side by side",
        "bound by",
        "not built: a run with all in each stage",
    ]
    return _markdown([*head, "longest, bound by", "GPU, USD"], rows)


def _upkeep_table() -> str:
    rows = []
    for episodes in SIZES:
        made = estimate(SIZES[episodes])
        needed, stage = made.memory
        runs = [str(made.task_runs), _time(made.task_runs * TASK_RUN_S), _time(episodes * TASK_RUN_S)]
        hub = [str(made.hub_requests), f"{_time(made.hub.seconds)} ({made.hub.bound})"]
        room = [f"{needed / 1e9:.1f} GB ({stage})", f"{made.disk / 1e9:,.0f} GB"]
        rows.append([f"{episodes:,}", *runs, f"{made.prefect_requests_s:.1f}", *hub, *room])
    head = ["episodes", "task runs", "their time", "if an episode were one", "requests a second to Prefect"]
    return _markdown([*head, "requests to the Hub", "their time", "most memory", "disk"], rows)


def _markdown(head: list[str], rows: Iterable[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _time(seconds: float) -> str:
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.1f} s"


if __name__ == "__main__":
    print(tables())
