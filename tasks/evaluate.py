"""Evaluates one model on held-out questions: a checkpoint, or a model behind an endpoint.

In: the model, the evaluation's `Questions`, a protocol. Out: `Evaluation`: episodes.jsonl and the rates.
A checkpoint generates in batches; an endpoint and the environment are called concurrently. Finished episodes are
journaled, so an interrupted evaluation resumes where it stopped.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from datetime import date, timedelta
from logging import WARNING
from pathlib import Path
from typing import Any

from apprentice.envs.catalog import EnvironmentSpec
from apprentice.envs.pool import EnvironmentPool
from apprentice.envs.wire.metrics import count
from apprentice.envs.wire.session import Refused, SessionLost
from apprentice.tasks.analysis.broken_episodes import check_broken
from apprentice.tasks.artifacts.alike import made_alike
from apprentice.tasks.artifacts.types import Checkpoint, Evaluation, Questions
from apprentice.tasks.endpoints.budget import Budget
from apprentice.tasks.endpoints.teacher import Teacher
from apprentice.tasks.engine.limits import leases
from apprentice.tasks.engine.run import RunContext
from apprentice.tasks.engine.stage import Drawn, StageContext, stage
from apprentice.tasks.episodes.journal import Journal, journal
from apprentice.tasks.episodes.record import EvaluatedEpisode, read_episodes
from apprentice.tasks.files.question_lists import used_questions
from apprentice.tasks.models.memory import explained_oom
from apprentice.tasks.players.local_model import LocalModel
from apprentice.tasks.players.play import Endpoint, Keep, Play, play_alone, play_batched, plays_of
from apprentice.tasks.players.protocols import PROTOCOLS, Parity
from apprentice.tasks.players.refused_episodes import check_unanswered_twice
from apprentice.tasks.reporting import announce
from apprentice.tasks.reporting.errors import BudgetReached, EndpointStop, Stop, TeacherFailed
from apprentice.tasks.reporting.progress import note
from apprentice.tasks.settings.endpoint import EndpointSpec
from apprentice.tasks.settings.spec import EvaluateSpec, Purpose
from apprentice.tasks.statistics.intervals import worth
from apprentice.tasks.statistics.rates import answers_of

EVALUATED = Drawn("Evaluate", "n", "answers")


@stage(
    produces=Evaluation, version=5, title="Evaluation of {checkpoint.stage} in {environment}", drawn=EVALUATED, gpu=True
)
def evaluate(
    context: StageContext,
    spec: EvaluateSpec,
    checkpoint: Checkpoint,
    environment: EnvironmentSpec,
    questions: Questions,
    seed: int,
) -> dict[str, Any]:
    """Plays every held-out question. Raises Stop when the environment is lost: an outage does not count as failure."""
    protocol = PROTOCOLS[spec.protocol]
    server = context.run.servers.environment(environment.name)
    same = {"stage": evaluate.name, "version": evaluate.version, "environment": environment.in_key(), "seed": seed}
    before = _played_before(context, same | {"spec": spec.in_key()}, {"checkpoint": checkpoint.revision})
    with (
        explained_oom(spec),
        evaluation_journal(context, spec, questions, checkpoint.stage, before) as (kept, ahead, keep),
    ):
        if ahead:
            with EnvironmentPool(environment, server, min(spec.batch_size, len(ahead)), announce.warn) as pool:
                opened = pool.open_ahead()
                model = LocalModel(context.fetch(checkpoint), spec, protocol, seed, context.run.trusted)
                opened.result()
                play_batched(pool, ahead, model, protocol, keep)
        return publish(kept, context.out / "episodes.jsonl", protocol, checkpoint.stage)


@stage(produces=Evaluation, version=1, title="Evaluation of {endpoint.called} in {environment}", drawn=EVALUATED)
def evaluate_endpoint(
    context: StageContext,
    spec: EvaluateSpec,
    endpoint: EndpointSpec,
    environment: EnvironmentSpec,
    questions: Questions,
    as_of: str,
) -> dict[str, Any]:
    """Like `evaluate`, for a model behind an endpoint: a served student, a teacher, another model. Raises Stop.

    A question that the endpoint did not answer in two runs, while it answered the others, counts as a failure: servers
    answer with an error where a model's own call cannot be read.

    `as_of`: the state of the model there, such as a date. It is part of the key, because the weights cannot be.
    """
    protocol = PROTOCOLS[spec.protocol]
    same = {"stage": evaluate_endpoint.name, "version": evaluate_endpoint.version, "endpoint": endpoint.in_made_by()}
    same |= {"environment": environment.in_key(), "as_of": as_of}
    before = _played_before(context, same | {"spec": spec.in_key()}, {})
    endpoint, url = as_evaluated(endpoint, spec), context.run.servers.teacher()
    journaled = evaluation_journal(context, spec, questions, endpoint.called, before)
    with played_at(context, spec, endpoint, url, environment, journaled) as (kept, spent):
        return publish(kept, context.out / "episodes.jsonl", protocol, endpoint.called, spent)


def as_evaluated(endpoint: EndpointSpec, spec: EvaluateSpec) -> EndpointSpec:
    """The endpoint with an evaluation's sampling, and with room for a turn: a student's answer and its thought."""
    most = spec.max_new_tokens + endpoint.thought_tokens if endpoint.serves_student else endpoint.max_tokens
    temperature = spec.temperature if spec.decoding == "sampled" else 0.0
    return endpoint.model_copy(update={"max_tokens": PROTOCOLS[spec.protocol].tokens(most), "temperature": temperature})


@contextmanager
def played_at(
    context: StageContext,
    spec: EvaluateSpec,
    endpoint: EndpointSpec,
    url: str | None,
    environment: EnvironmentSpec,
    journaled: AbstractContextManager[tuple[Journal, list[Play], Keep]],
    sessions: int | None = None,
) -> Iterator[tuple[Journal, float]]:
    """Plays the missing episodes at an endpoint; yields the journal, and what was spent. An episode that the endpoint
    did not answer in two runs is kept as failed; raises EndpointStop for others, SessionLost, Stop."""
    server = context.run.servers.environment(environment.name)
    with journaled as (kept, ahead, keep):
        size = sessions and min(sessions, max(len(ahead), 1))
        with (
            closing(Budget(endpoint.prices, endpoint.budget_usd, context.scratch / "spent_usd", kept.check)) as budget,
            closing(Teacher(endpoint, url, 1, budget)) as teacher,
            EnvironmentPool(environment, server, size, announce.warn, leases) as pool,
        ):
            played = map(EvaluatedEpisode.model_validate_json, kept.in_order())
            known = next((each for each in played if not each.broken), None)
            if ahead and known:
                teacher.recall(known.messages[:2], pool.players[0].part(known.seed).schemas, known.seed, "auto")
            unanswered = play_alone(pool, ahead, Endpoint(teacher), PROTOCOLS[spec.protocol], keep)
            if unanswered:
                missing = {record.place: record.broken for record in unanswered}
                most = spec.max_failed * (len(kept) + len(missing))
                check_unanswered_twice(missing, context.scratch / "unanswered.json", most, "evaluate.max_failed")
                for record in unanswered:
                    keep(record)
        yield kept, budget.spent


LONGEST = 366
"""Days after which an endpoint's unfinished evaluation is left as it is."""


def endpoint_as_of(
    run: RunContext,
    spec: EvaluateSpec,
    endpoint: EndpointSpec,
    environment: EnvironmentSpec,
    questions: Questions,
    today: date,
) -> str:
    """The date as of which an endpoint's evaluation counts: today, or when the unfinished one of these settings began.

    Its answers are paid for. One that an evaluation of a later date has replaced is left as it is.
    """
    given = (spec, endpoint, environment, questions)
    unfinished = list(evaluate_endpoint.scratch(run, "").parent.glob(f"{evaluate_endpoint.name}-*/episodes.jsonl"))
    answers = {path.parent: path.read_bytes().count(b"\n") for path in unfinished}
    dates = [str(today - timedelta(days)) for days in range(-1, LONGEST)]  # another machine may have tomorrow's date
    for place, as_of in enumerate(dates if answers else []):
        if kept := answers.get(evaluate_endpoint.scratch(run, evaluate_endpoint.key((*given, as_of), {}))):
            if any(evaluate_endpoint.find(run, *given, later) is not None for later in {*dates[:place], str(today)}):
                break
            if as_of != str(today):
                announce.say(
                    f"The evaluation of {endpoint.called} that began on {as_of} resumes with its {kept:,} answers and "
                    f"counts as of {as_of}. `--as-of {today}` asks every question again."
                )
            return as_of
    return str(today)


@contextmanager
def evaluation_journal(
    context: StageContext,
    spec: EvaluateSpec,
    questions: Questions,
    model: str,
    before: Iterable[EvaluatedEpisode] = (),
) -> Iterator[tuple[Journal, list[Play], Callable[[EvaluatedEpisode], None]]]:
    """Yields the journal, the episodes still to play, and a function to call with each played episode.

    Raises Stop when a server is lost or fails on too many questions; finished episodes are kept.

    Args:
        before: Episodes of the same model under other windows; what it has played is not played again.
    """
    rows = used_questions(context.fetch(questions), Purpose.EVALUATE)[: spec.questions]
    plays = plays_of(rows, spec.samples)
    initial_settings = {"evaluate": spec.in_key(), "plays": len(plays)}
    with journal(context.scratch, initial_settings, announce.warn, numbered_by="place") as kept:
        _take_known(kept, plays, before)
        done = kept.done()
        with announce.progress(f"evaluate {model}", len(plays), len(done)) as advance:

            def keep(record: EvaluatedEpisode) -> None:
                nonlocal broken
                if record.broken:
                    broken += 1
                    note("environment failed", WARNING, episode=record.seed, cause=record.broken)
                    check_broken(broken, len(plays), spec.max_failed, record.broken)
                kept.append(record)
                advance(1)
                count("episodes")

            broken = sum(bool(json.loads(line).get("broken")) for line in kept.in_order())
            try:
                yield kept, [play for play in plays if play.place not in done], keep
            except SessionLost as lost:
                raise Stop(
                    f"The evaluation lost the environment: {lost}. {len(kept)} of {len(plays)} episodes are kept.",
                    "Check that its server runs, then run again: the evaluation resumes from there.",
                ) from lost
            except Refused as refused:
                raise Stop(
                    f"The environment refused a question that it accepted before: {refused}. {len(kept)} of "
                    f"{len(plays)} episodes are kept.",
                    "Check that its server is still the same one, then run again: the evaluation resumes from there.",
                ) from refused
            except EndpointStop as stop:
                cause = f"{stop.cause.removesuffix('.')}. {len(kept)} of {len(plays)} episodes are kept."
                raise EndpointStop(cause, stop.remedy) from stop
            except TeacherFailed as failed:
                raise Stop(
                    f"{model} gave no answer: {failed}. {len(kept)} of {len(plays)} episodes are kept.",
                    "Check that its endpoint runs, then run again: the evaluation resumes from there. If it refuses "
                    "this request, it may need a longer context or fewer tokens (teacher.max_tokens).",
                ) from failed
            except BudgetReached:
                raise Stop(
                    f"The budget is used up; {len(kept)} of {len(plays)} episodes are kept.",
                    "Raise teacher.budget_usd and run again: the evaluation resumes from there.",
                ) from None


def _played_before(
    context: StageContext, settings: dict[str, Any], inputs: dict[str, str]
) -> Iterator[EvaluatedEpisode]:
    """The episodes of earlier evaluations of a model that differ in how many questions were asked, and how often."""
    amount = {"spec": ("questions", "samples")}
    for _, folder in made_alike(context.run.store, Evaluation, settings, inputs, ignoring=amount):
        yield from read_episodes(folder)


def _take_known(kept: Journal, plays: list[Play], before: Iterable[EvaluatedEpisode]) -> None:
    """Journals the answers that exist. One follows from its question and its sample, not from its place."""
    done = kept.done()
    missing = {(play.seed, play.question, play.sample): play.place for play in plays if play.place not in done}
    for each in before if missing else ():
        place = missing.pop((each.seed, each.question, each.sample), None) if not each.broken else None
        if place is not None:
            kept.append(each.model_copy(update={"place": place}))
    if found := len(kept) - len(done):
        announce.say(f"{found:,} of these {len(plays):,} answers exist, and are not asked for again.")


def publish(kept: Journal, to: Path, protocol: Parity, model: str, cost_usd: float = 0.0) -> dict[str, Any]:
    """Writes the episodes in order; returns the fields of the `Evaluation`."""
    with to.open("wb") as file:
        file.writelines(kept.in_order())
    return {"model": model, "protocol": protocol.name, "cost_usd": cost_usd} | rates(read_episodes(to.parent), protocol)


def rates(records: list[EvaluatedEpisode], protocol: Parity) -> dict[str, Any]:
    """n and the three rates over all episodes, including those on which the environment failed; with several samples of
    a question, what they are worth."""
    n = len(records)
    by_question = answers_of(records)
    several = {"questions": len(by_question), "worth": worth(by_question.values())} if len(by_question) < n else {}
    return {
        "n": n,
        "broken": sum(bool(record.broken) for record in records),
        "unfinished": sum(record.unfinished for record in records),
        "format_compliance": sum(record.valid for record in records) / n,
        "accuracy": protocol.accuracy(records),
        "mean_score": sum(record.score for record in records) / n,
        **several,
    }
