"""Compares models on the same questions: rates with intervals, paired differences, corrected for multiple comparisons.

In: evaluated episodes of several models. Out: dictionaries for reports, and rows for tables.
Intervals are of 95%, tests and power from scipy and statsmodels. Several samples of a question are averaged first:
questions are independent, samples of one question are not.

Decides how questions count on which the environment failed.

Checks whether a model was trained on the questions it is evaluated on, by seed and by text.
"""

import itertools
import json
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from statistics import NormalDist
from typing import Any, TypeVar

from apprentice.tasks.analysis.exact_tests import mcnemar, sign_flips
from apprentice.tasks.artifacts.types import Evaluation, ModelName, models_of_a_run
from apprentice.tasks.episodes.record import LEARNED, EvaluatedEpisode, read_learned, same_text
from apprentice.tasks.judgement.contents import Comparison, Difference, Interval, PairedTest, Rates
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.reporting.safe_text import points

RESAMPLES = 10_000
POWER = 0.8
LEVEL = 0.05
PRIOR = NormalDist().inv_cdf(1.0 - LEVEL / 2) ** 2 / 4
"""The variance of z² answers, half of them right, which Wilson's interval adds to the variance that it sees."""
DECAY = 1.6
"""How fast the levels of gates fall from round to round; a larger one leaves less for late gates."""
F = TypeVar("F")


def wilson(successes: float, n: float) -> Interval:
    """Wilson's score interval for a rate (E. B. Wilson, 1927), which stays accurate near 0 and 1. Each answer is to
    another question: `clustered_interval` takes several answers to one."""
    z = NormalDist().inv_cdf(1.0 - LEVEL / 2)  # in three lines: scipy's takes a second to import, statsmodels' three
    center, half = successes + z**2 / 2, z * math.sqrt(successes * (n - successes) / n + z**2 / 4)
    low, high = (center - half) / (n + z**2), (center + half) / (n + z**2)
    return (low if successes else 0.0), (high if successes < n else 1.0)  # without the last bit's rounding


def mean_interval(values: Sequence[float]) -> Interval:
    """Percentile bootstrap interval of a mean; a single point when all values are equal."""
    import numpy as np
    from scipy.stats import bootstrap

    if len(set(values)) == 1:
        return values[0], values[0]
    result = bootstrap(
        (np.array(values),),
        np.mean,
        n_resamples=RESAMPLES,
        method="percentile",
        rng=np.random.default_rng(0),
        batch=1000,
    )
    return float(result.confidence_interval.low), float(result.confidence_interval.high)


def worth(by_question: Iterable[Sequence[float]]) -> float:
    """To how many different questions one answer each would be worth as much as these answers: the number of questions
    over the design effect (L. Kish, Survey Sampling, 1965), and no more than there are answers.

    Answers to one question that are all alike are worth one. How alike they are is seen in how much the questions'
    rates differ; as in Wilson's interval, z² questions more are assumed, half of them right, with answers that are all
    alike. So where nearly all answers are right, which tells little about it, they are worth about as many as there are
    questions.

    Args:
        by_question: For each question its answers, 1 for a right one and 0 for a wrong one.
    """
    groups = [(len(answers), sum(answers)) for answers in by_question]
    answers, squares = sum(n for n, _ in groups), sum(n * n for n, _ in groups)
    rate = sum(right for _, right in groups) / answers
    alike = answers * answers / squares  # as many questions as there are, where all have as many answers
    usual = squares / len(groups)
    between = sum((right - n * rate) ** 2 for n, right in groups) / usual
    return min(answers, alike * (len(groups) * rate * (1 - rate) + PRIOR) / (between + PRIOR))


def clustered_interval(by_question: Iterable[Sequence[float]]) -> Interval:
    """The interval of a rate for one or several answers to each question: Wilson's, with as many answers as they are
    `worth`; with one answer each, or where all answers to a question are alike, Wilson's of the questions.

    Of answers that are no successes, such as scores with partial credit, the bootstrap interval over questions.
    """
    groups = [list(map(float, answers)) for answers in by_question]
    if not all(map(_is_binary, groups)):
        return mean_interval([sum(each) / len(each) for each in groups])
    if all(len(set(each)) == 1 for each in groups) and len({len(each) for each in groups}) == 1:
        return wilson(round(sum(each[0] for each in groups)), len(groups))
    answers = sum(map(len, groups))
    return interval_of(sum(map(sum, groups)) / answers, worth(groups))


def interval_of(accuracy: float, n: float) -> Interval:
    """Wilson's interval of a rate over so many answers to different questions, or answers that are `worth` as many."""
    right = accuracy * n
    return wilson(round(right) if math.isclose(right, round(right), abs_tol=1e-6) else right, n)


def evaluated_interval(played: Evaluation) -> Interval:
    """The interval of an evaluation's accuracy, from its counts."""
    return interval_of(played.accuracy, played.worth or played.n)


def paired_difference(before: Sequence[float], after: Sequence[float]) -> dict[str, Any]:
    """after - before on the same questions.

    Returns:
        delta; ci, its paired bootstrap interval; p_value and its test: McNemar's exact test for values of 0 and 1, else
        the paired permutation test over all flips of signs; won and lost, the number of questions that rose and fell;
        and questions_for_5_points (see `questions_for`).
    """
    differences = [float(a) - float(b) for b, a in zip(before, after, strict=True)]
    won, lost = sum(each > 0 for each in differences), sum(each < 0 for each in differences)
    binary = _is_binary(before) and _is_binary(after)
    return {
        "delta": sum(differences) / len(differences),
        "ci": mean_interval(differences),
        "p_value": mcnemar(won, lost) if binary else sign_flips(differences),
        "test": PairedTest.MCNEMAR if binary else PairedTest.PERMUTATION,
        "won": won,
        "lost": lost,
        "questions_for_5_points": questions_for(0.05, differences),
    }


def _is_binary(values: Sequence[float]) -> bool:
    return all(value in (0, 1) for value in values)


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's correction for multiple comparisons (S. Holm, 1979)."""
    from statsmodels.stats.multitest import multipletests

    if not p_values:
        return []
    corrected: Any = multipletests(p_values, method="holm")[1]
    return [float(p) for p in corrected]


def questions_for(difference: float, differences: Sequence[float]) -> int | None:
    """Number of paired questions that detect a true `difference` with 80% power at the 5% level.

    Uses the power of a t test with the spread of the observed `differences`; for binary values the spread is at least
    that of the difference itself. None when the differences have no spread.
    """
    import numpy as np
    from statsmodels.stats.power import TTestPower

    if len(set(differences)) < 2:
        return None
    spread = float(np.std(differences, ddof=1))
    if all(each in (-1, 0, 1) for each in differences):
        spread = max(spread, math.sqrt(difference - difference**2))
    if difference > spread:  # a handful is enough; the solver finds no solution
        return None
    solved: Any = TTestPower().solve_power(difference / spread, power=POWER, alpha=LEVEL)
    return math.ceil(np.asarray(solved).item())


def pass_at_k(right: int, samples: int, k: int) -> float:
    """The probability that at least one of `k` samples is right: the unbiased estimator of the Codex paper (Chen et
    al., 2021, section 2.1), that is 1 minus the hypergeometric probability of drawing none."""
    from scipy.stats import hypergeom

    return float(hypergeom.sf(0, samples, right, k))


def welch_interval(before: list[float], after: list[float]) -> Interval | None:
    """Welch's interval for the difference of two means; None without enough values or variance."""
    from scipy.stats import ttest_ind

    if min(len(before), len(after)) < 2 or (len(set(before)) == 1 and len(set(after)) == 1):
        return None
    interval = ttest_ind(after, before, equal_var=False).confidence_interval(0.95)
    return float(interval.low), float(interval.high)


def level_of(number: int) -> float:
    """The significance level of the gate of round `number`; round 0 is judged at LEVEL by itself.

    Alpha spending (D. Foster and R. Stine, J. R. Stat. Soc. B 70, 2008): gate r may spend LEVEL × w_r, and the w_r of
    infinitely many gates sum to 1; by the union bound no more than LEVEL is spent, however many rounds are run and
    whatever they depend on. w_r falls as r ** -1.6, as in the R package onlineFDR.
    """
    from scipy.special import zeta

    return LEVEL * number**-DECAY / float(zeta(DECAY))


def check_broken(broken: int, of: int, max_failed: float, last: str) -> None:
    """Raises Stop when the environment failed on a larger share of episodes than `max_failed`."""
    if broken > max(max_failed * of, min(1, of - 1)):
        raise Stop(
            f"The environment or the model's endpoint failed on {broken} of {of} episodes, each time again; the "
            f"last one: {last}",
            "Fix that server, exclude the questions that it cannot score (environment.settings), or raise this stage's "
            "max_failed. Then run again.",
        )


def scored(episodes: dict[str, list[EvaluatedEpisode]]) -> tuple[dict[str, list[EvaluatedEpisode]], str]:
    """The episodes of each model without the questions on which the environment failed in every sample of every
    model, and a note for the report."""
    broken = by_question(itertools.chain(*episodes.values()), lambda record: bool(record.broken))
    left_out = {place for place, of_question in broken.items() if all(of_question)}
    kept = {
        name: [record for record in records if record.place - record.sample not in left_out]
        for name, records in episodes.items()
    }
    broke = {name: sum(bool(record.broken) for record in records) for name, records in episodes.items()}
    if not any(broke.values()):
        return kept, ""
    counts = ", ".join(f"{number} of {name}" for name, number in broke.items())
    return kept, (
        f"The environment or an endpoint failed on episodes: {counts}. "
        f"Questions on which it failed for every model are left out ({len(left_out)}); any other such episode counts "
        "as not right."
    )


LABELS: dict[str, str] = {ModelName.CONTROL: "SFT to its best"}
"""What people read in place of a model's name."""


NAMES: dict[str, str] = {
    ModelName.BASE: "the untrained student",
    ModelName.CHAMPION: "the champion",
    "teacher": "Teacher",
}


def compare_all(
    episodes: dict[str, list[EvaluatedEpisode]], regression_records: dict[str, list[EvaluatedEpisode]]
) -> dict[str, list[dict[str, Any]]]:
    """Compares consecutive models on the held-out questions, and before with after in regression evaluations;
    Holm-corrected over all comparisons. What was trained beside a control is compared with it and with its start."""
    comparisons = []
    names = [*episodes]
    place = names.index(ModelName.CONTROL) if ModelName.CONTROL in episodes else 0
    beyond = [(names[place - 1], names[place + 1])] if 0 < place < len(names) - 1 else []
    for one, other in [*itertools.pairwise(names), *beyond]:
        compared = compare(*in_both(episodes[one], episodes[other]))
        comparisons.append({"from": one, "to": other, "delta_accuracy": compared["delta"]} | compared)
    regressions = []
    for name, places in itertools.groupby(regression_records, key=lambda each: each.rpartition(".")[0]):
        pair, _ = scored({place: regression_records[place] for place in places})
        before, after = pair.values()
        both = {"before": rate(before), "after": rate(after)}
        regressions.append({"guard": name} | both | compare(before, after))
    correct([*comparisons, *regressions])
    return {"comparisons": comparisons, "guards": regressions}


def correct(comparisons: list[dict[str, Any]]) -> None:
    """Adds p_holm to each comparison, corrected over all of them. In place."""
    for each, p in zip(comparisons, holm([each["p_value"] for each in comparisons]), strict=True):
        each["p_holm"] = p


def in_both(
    one: list[EvaluatedEpisode], other: list[EvaluatedEpisode]
) -> tuple[list[EvaluatedEpisode], list[EvaluatedEpisode]]:
    """The first episodes of each, as many as the shorter has: the untrained student may be asked the first questions
    alone (`evaluate.base_questions`)."""
    both = min(len(one), len(other))
    return one[:both], other[:both]


def compare(before: list[EvaluatedEpisode], after: list[EvaluatedEpisode], metric: str = "accuracy") -> dict[str, Any]:
    """The paired difference of a metric. Raises ValueError when the questions are not the same."""
    if [record.question for record in before] != [record.question for record in after]:
        raise ValueError("the two models were not asked the same questions")
    return {"metric": metric} | paired_difference(per_question(before, metric), per_question(after, metric))


def per_question(records: list[EvaluatedEpisode], metric: str) -> list[float]:
    """One value per question: the mean over its samples."""
    return [sum(samples) / len(samples) for samples in answers_of(records, metric).values()]


def answers_of(records: list[EvaluatedEpisode], metric: str = "accuracy") -> dict[int, list[float]]:
    """The value of each sample of a question, by the place of its first one."""
    figure = {"accuracy": "is_right", "format_compliance": "valid", "mean_score": "score"}[metric]
    return by_question(records, lambda record: float(getattr(record, figure)))


def by_question(records: Iterable[EvaluatedEpisode], figure: Callable[[EvaluatedEpisode], F]) -> dict[int, list[F]]:
    """A figure of each sample of a question, by the place of its first one."""
    found: defaultdict[int, list[F]] = defaultdict(list)
    for record in records:
        found[record.place - record.sample].append(figure(record))
    return dict(found)


def rate(records: list[EvaluatedEpisode], metric: str = "accuracy") -> dict[str, Any]:
    """A rate with its 95% interval, and the number of questions."""
    values = per_question(records, metric)
    ci = clustered_interval(answers_of(records, metric).values())
    return {"n": len(values), metric: sum(values) / len(values), "ci": ci}


def with_intervals(records: list[EvaluatedEpisode]) -> dict[str, Any]:
    """n, each rate with its 95% interval, and pass@k if questions have several samples."""
    scores = per_question(records, "mean_score")
    found = {metric: rate(records, metric) for metric in ("format_compliance", "accuracy")}
    return {
        "n": len(scores),
        **{metric: found[metric][metric] for metric in found},
        "mean_score": sum(scores) / len(scores),
        "ci": {metric: found[metric]["ci"] for metric in found} | {"mean_score": mean_interval(scores)},
        **_passes(records),
    }


def _passes(records: list[EvaluatedEpisode]) -> dict[str, Any]:
    samples = 1 + max(record.sample for record in records)
    if samples == 1:
        return {}
    right = [round(samples * value) for value in per_question(records, "accuracy")]
    rows = []
    for k in range(1, samples + 1):
        passed = [pass_at_k(each, samples, k) for each in right]
        rows.append({"k": k, "pass_at_k": sum(passed) / len(passed), "ci": mean_interval(passed)})
    return {"samples": samples, "pass_at_k": rows}


def table(models: Mapping[str, Rates]) -> list[dict[str, str]]:
    """One row per model: the three rates with their intervals."""
    return [
        {
            "model": label(name),
            "n": str(model.n),
            "format compliance": percent(model.format_compliance, model.ci["format_compliance"]),
            "accuracy": percent(model.accuracy, model.ci["accuracy"]),
            "mean score": percent(model.mean_score, model.ci["mean_score"]),
        }
        for name, model in models.items()
    ]


def percent(rate: float, ci: Interval | list[float]) -> str:
    """A rate with its interval as text."""
    return f"{rate:.1%} ({ci[0]:.1%} to {ci[1]:.1%})"


def comparison_rows(comparisons: Sequence[Comparison]) -> list[dict[str, str]]:
    """One row per pair of models, differences in percentage points."""
    return [{"from": label(each.from_), "to": label(each.to), **difference_cells(each)} for each in comparisons]


def label(model: str) -> str:
    return LABELS.get(model, model)


def named(model: str) -> str:
    """The name of a model in a sentence."""
    return NAMES.get(model, model.upper() if model in models_of_a_run() else label(model))


def difference_cells(each: Difference) -> dict[str, str]:
    """The cells of a paired difference: delta, interval, p and corrected p."""
    low, high = each.ci
    return {
        each.metric.replace("_", " "): points(each.delta),
        "95% interval": f"{points(low)} to {points(high)}",
        "p (McNemar)" if each.test == PairedTest.MCNEMAR else "p (permutation)": f"{each.p_value:.2g}",
        "p (Holm)": f"{each.p_holm:.2g}",
    }


def seen_by(checkpoint: Path, records: list[EvaluatedEpisode]) -> set[str]:
    """The evaluated questions that a checkpoint was trained on, normalized by `same_text`."""
    return {same_text(row["question"]) for row in read_learned(checkpoint)} & {same_text(r.question) for r in records}


def count_seen(checkpoint: Path, records: list[EvaluatedEpisode]) -> int | None:
    """The number of evaluated questions that a checkpoint was trained on; None for an external model."""
    if not (checkpoint / LEARNED).exists() and (checkpoint / "source.json").exists():
        return None
    return len(seen_by(checkpoint, records))


def _counted(learned: list[dict[str, Any]]) -> dict[str, int]:
    """Questions that each training learned from; none of a model that has no training of that kind, but for the first
    two kinds, which files of every version have."""
    counted, trained = Counter(row["stage"] for row in learned), models_of_a_run()[1:]
    return {name: counted[name] for name in trained if counted[name] or name in trained[:2]}


def contamination(
    records: list[EvaluatedEpisode],
    checkpoint: Path,
    rollouts: Path | None,
    limit: float,
    repeated: int = 0,
) -> dict[str, Any]:
    """The overlap between an evaluation and the training of one checkpoint.

    Args:
        rollouts: The folder of the collected rollouts, including those that the filter dropped; None without any.
        limit: Maximum share of the questions that training may have used.
        repeated: How many questions there are, where training and evaluation are tries of the same few; then there is
            no limit.
    """
    evaluation_texts = {same_text(record.question) for record in records}
    seeds = {record.seed for record in records}
    learned = read_learned(checkpoint)
    shared = {same_text(row["question"]) for row in learned} & evaluation_texts
    shared_seeds = seeds & {row["seed"] for row in learned}
    texts: set[str] = set()
    with (rollouts / "rollouts.jsonl").open() if rollouts else nullcontext(()) as lines:
        for row in map(json.loads, lines):
            shared_seeds |= seeds & {row["seed"]}
            texts |= evaluation_texts & {same_text(message["content"]) for message in row["messages"][1:2]}
    return {
        "questions": len(evaluation_texts),
        "learned_from": _counted(learned),
        "shared_with_training": len(shared),
        "shared_with_rollouts": len(texts),
        "shared_seeds": len(shared_seeds),
        "share": len(shared) / len(evaluation_texts),
        "limit": limit,
        "clean": bool(repeated) or (len(shared) <= limit * len(evaluation_texts) and not shared_seeds),
        "repeated": repeated,
    }
