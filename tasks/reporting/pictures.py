"""Plots for reports and Prefect: models' accuracy, the histogram of token lengths, the curves of a training."""

from pathlib import Path
from typing import Any


def histogram(values: list[int], line: int, to: Path) -> Path:
    """A histogram of token lengths with max_length as a vertical line."""
    figure, axes = _figure(1)
    axes[0].hist(values, bins=min(40, max(values) - min(values) + 1), color="#4878a8")
    axes[0].axvline(line, color="#b04030", linestyle="--", label=f"max_length = {line}")
    axes[0].set(xlabel="tokens", ylabel="rows")
    axes[0].legend()
    return _save(figure, to)


def curves(log: list[dict[str, Any]], shown: dict[str, str], to: Path) -> Path:
    """Plots one panel for each metric of `shown` (name to label) over the steps of a trainer's log history, with the
    held-out values where there are any."""
    figure, axes = _figure(len(shown))
    for axis, (metric, label) in zip(axes, shown.items(), strict=True):
        points, held_out = _points(log, metric), _points(log, f"eval_{metric}")
        axis.plot(*zip(*points, strict=True), color="#4878a8", label="training") if points else axis.text(
            0.5, 0.5, "not logged", ha="center"
        )
        if held_out:
            axis.plot(*zip(*held_out, strict=True), color="#b04030", marker="o", label="held out")
            axis.legend()
        axis.set(xlabel="step", title=label)
    return _save(figure, to)


def kinds(over_time: dict[str, dict[str, list[tuple[int, float]]]], to: Path) -> Path:
    """Plots what a curriculum asked when, and each kind's success rate: a row for each kind, a column for each log.

    Args:
        over_time: `asked` and `rate` by kind, each as (step, 0.0 to 1.0).
    """
    figure, axes = _figure(2)
    figure.set_size_inches(8.4, 1.5 + 0.25 * len(over_time))
    for axis, (name, title) in zip(
        axes, {"asked": "share of the questions", "rate": "success rate"}.items(), strict=True
    ):
        steps = [step for step, _ in next(iter(over_time.values()))[name]]
        values = [[value for _, value in each[name]] for each in over_time.values()]
        ends = steps[0] - 0.5, steps[-1] + 0.5, len(values) - 0.5, -0.5
        most = 1.0 if name == "rate" else max(map(max, values))  # of many kinds, none has a large share
        look: Any = {"aspect": "auto", "interpolation": "nearest", "cmap": "viridis"}
        shown = axis.imshow(values, vmin=0.0, vmax=most, extent=ends, **look)
        axis.set(xlabel="step", title=title)
        axis.set_yticks(range(len(over_time)), [kind[:24] for kind in over_time] if name == "asked" else [])
        figure.colorbar(shown, ax=axis)
    return _save(figure, to)


def rates(models: dict[str, Any], titles: dict[str, str], to: Path) -> Path:
    """A bar for each model's accuracy (`accuracy`, `ci`), with its interval."""
    figure, axes = _figure(1)
    names = [*models][::-1]
    values = [models[name]["accuracy"] for name in names]
    errors = _errors([(models[name]["accuracy"], models[name]["ci"]["accuracy"]) for name in names])
    axes[0].barh([titles[name] for name in names], values, xerr=errors, color="#8fb6da", capsize=4)
    axes[0].set(xlabel="right, 95% intervals", xlim=(0, 1))
    return _save(figure, to)


def rates_by_kind(rows: list[dict[str, Any]], titles: dict[str, str], to: Path) -> Path:
    """A panel for each slice name, a group of bars for each kind, a bar for each model with its interval."""
    slice_names = list(dict.fromkeys(row["trait"] for row in rows))
    titles = {name: title for name, title in titles.items() if name in rows[0]["models"]}
    figure, axes = _figure(len(slice_names))
    for axis, slice_name in zip(axes, slice_names, strict=True):
        kinds = [row for row in rows if row["trait"] == slice_name]
        wide = 0.8 / len(titles)
        for at, (name, title) in enumerate(titles.items()):
            found = [(row["models"][name]["accuracy"], row["models"][name]["ci"]) for row in kinds]
            places = [place + wide * at for place in range(len(kinds))]
            axis.bar(places, [value for value, _ in found], wide, yerr=_errors(found), label=title, capsize=2)
        middle = wide * (len(titles) - 1) / 2
        axis.set_xticks([place + middle for place in range(len(kinds))], [f"{row['kind']}" for row in kinds])
        axis.set(xlabel=slice_name, ylim=(0, 1))
        axis.tick_params(axis="x", labelrotation=30 if len(kinds) > 4 else 0)
    axes[0].set_ylabel("right, 95% intervals")
    axes[-1].legend()
    return _save(figure, to)


def rounds_curve(points: list[dict[str, Any]], to: Path) -> Path:
    """Plots the champion's accuracy after each round: on the round's own window with its interval (`accuracy`, `ci`),
    and on the window that no gate reads (`long_run`, where it is not None)."""
    figure, axes = _figure(1)
    rounds, rates = [each["round"] for each in points], [each["accuracy"] for each in points]
    errors = _errors([(each["accuracy"], each["ci"]) for each in points])
    axes[0].errorbar(rounds, rates, yerr=errors, color="#4878a8", marker="o", capsize=3, label="own window")
    if measured := [(each["round"], each["long_run"]) for each in points if each["long_run"] is not None]:
        axes[0].plot(*zip(*measured, strict=True), color="#b04030", marker="s", label="long run")
    axes[0].set(xlabel="round", ylabel="accuracy", ylim=(0, 1), xticks=sorted(set(rounds)))
    axes[0].legend()
    return _save(figure, to)


def budget_curve(rows: list[dict[str, Any]], to: Path) -> Path:
    """Plots accuracy with its interval over the tokens an answer, one point for each budget of thought."""
    figure, axes = _figure(1)
    tokens, accuracies = [each["tokens"] for each in rows], [each["accuracy"] for each in rows]
    errors = _errors([(each["accuracy"], each["ci"]) for each in rows])
    axes[0].errorbar(tokens, accuracies, yerr=errors, color="#4878a8", marker="o", capsize=3)
    for each in rows:
        axes[0].annotate(
            f"{each['budget']:.0%}", (each["tokens"], each["accuracy"]), xytext=(4, 4), textcoords="offset points"
        )
    axes[0].set(xlabel="tokens an answer", ylabel="accuracy", ylim=(0, 1))
    return _save(figure, to)


def _errors(rates: list[tuple[float, Any]]) -> list[list[float]]:
    """The distances from each rate to the ends of its interval, as matplotlib takes them."""
    return [[max(0.0, (value - ci[end]) * sign) for value, ci in rates] for end, sign in ((0, 1), (1, -1))]


def _points(log: list[dict[str, Any]], metric: str) -> list[tuple[int, float]]:
    return [(entry["step"], entry[metric]) for entry in log if entry.get(metric) is not None]


def _figure(panels: int) -> Any:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.2 * panels, 3.0), layout="constrained")
    return figure, [figure.add_subplot(1, panels, place + 1) for place in range(panels)]


def _save(figure: Any, to: Path) -> Path:
    figure.savefig(to, dpi=110)
    return to
