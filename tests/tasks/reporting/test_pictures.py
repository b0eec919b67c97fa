"""The plots show what they were given: values, intervals, names, in the places where a reader looks for them."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from apprentice.tasks.reporting import pictures

TITLES = {"base": "untrained", "sft": "after SFT"}
LOG = [{"step": 1, "loss": 3.0}, {"step": 2, "loss": 2.0}, {"step": 2, "eval_loss": 2.5}, {"step": 3, "loss": None}]


class Drawn:
    """The figure that was saved last."""

    figure: Any = None

    def save(self, figure: Any, to: Path) -> Path:
        self.figure = figure
        figure.savefig(to, dpi=20)
        return to

    @property
    def panels(self) -> list[Any]:
        return [each for each in self.figure.axes if each.get_label() != "<colorbar>"]

    def legends(self) -> list[list[str]]:
        """The words of each panel's legend."""
        found = [each.get_legend() for each in self.panels]
        return [[text.get_text() for text in legend.get_texts()] if legend else [] for legend in found]


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> Drawn:
    kept = Drawn()
    monkeypatch.setattr(pictures, "_save", kept.save)
    return kept


def lines(axis: Any) -> list[list[tuple[float, float]]]:
    return [[(float(x), float(y)) for x, y in zip(*line.get_data(), strict=True)] for line in axis.lines]


def spans(axis: Any) -> list[list[tuple[float, float]]]:
    """The ends of the intervals of each group of error bars, in the direction in which they stand."""
    return [
        [(round(float(min(ends)), 6), round(float(max(ends)), 6)) for ends in [part[:, way] for part in parts]]
        for bars in axis.containers
        if hasattr(bars, "has_xerr")
        for parts in [bars.lines[2][0].get_segments()]
        for way in [0 if bars.has_xerr else 1]
    ]


def test_a_histogram_has_every_value_and_the_line(drawn: Drawn, tmp_path: Path):
    assert pictures.histogram([3, 3, 5, 9], 7, tmp_path / "lengths.png").stat().st_size > 1000
    (axis,) = drawn.panels
    assert [bar.get_height() for bar in axis.patches] == [2, 0, 1, 0, 0, 0, 1]
    assert lines(axis)[0][0][0] == 7.0
    assert drawn.legends() == [["max_length = 7"]]
    pictures.histogram(list(range(100)), 7, tmp_path / "lengths.png")
    assert len(drawn.panels[0].patches) == 40


def test_a_curve_has_the_logged_points_and_the_held_out_ones(drawn: Drawn, tmp_path: Path):
    pictures.curves(LOG, {"loss": "loss", "entropy": "entropy"}, tmp_path / "curves.png")
    loss, entropy = drawn.panels
    assert lines(loss) == [[(1.0, 3.0), (2.0, 2.0)], [(2.0, 2.5)]]
    assert drawn.legends() == [["training", "held out"], []]
    assert [each.get_title() for each in drawn.panels] == ["loss", "entropy"]
    assert lines(entropy) == []
    assert [text.get_text() for text in entropy.texts] == ["not logged"]


def test_a_model_has_a_bar_as_long_as_its_accuracy_the_first_one_on_top(drawn: Drawn, tmp_path: Path):
    models = {
        name: {"accuracy": at, "ci": {"accuracy": [at - 0.1, at + 0.2]}} for name, at in (("base", 0.2), ("sft", 0.7))
    }
    pictures.rates(models, TITLES, tmp_path / "rates.png")
    (axis,) = drawn.panels
    assert [bar.get_width() for bar in axis.patches] == [0.7, 0.2]
    assert [text.get_text() for text in axis.get_yticklabels()] == ["after SFT", "untrained"]
    assert spans(axis) == [[(0.6, 0.9), (0.1, 0.4)]]
    assert axis.get_xlim() == (0.0, 1.0)


@pytest.mark.parametrize(("kinds", "turned"), [(4, 0.0), (5, 30.0)])
def test_each_kind_of_question_has_a_bar_for_each_model(drawn: Drawn, tmp_path: Path, kinds: int, turned: float):
    rows = [
        {"trait": slice_name, "kind": kind, "models": {name: {"accuracy": 0.5, "ci": [0.4, 0.7]} for name in TITLES}}
        for slice_name, most in (("words", kinds), ("depth", 2))
        for kind in range(most)
    ]
    pictures.rates_by_kind(rows, TITLES, tmp_path / "kinds.png")
    words, depth = drawn.panels
    assert [each.get_xlabel() for each in drawn.panels] == ["words", "depth"]
    assert [len(each.patches) for each in drawn.panels] == [2 * kinds, 4]
    assert [text.get_text() for text in words.get_xticklabels()] == [str(kind) for kind in range(kinds)]
    assert words.get_xticklabels()[0].get_rotation() == turned
    assert depth.get_xticklabels()[0].get_rotation() == 0.0
    assert spans(depth) == [[(0.4, 0.7)] * 2] * 2
    assert drawn.legends() == [[], ["untrained", "after SFT"]]
    beside = sorted((bar.get_x(), bar.get_x() + bar.get_width()) for bar in depth.patches)
    assert all(end <= begin + 1e-9 for (_, end), (begin, _) in pairwise(beside))
    middles = [(beside[at][0] + beside[at + 1][1]) / 2 for at in (0, 2)]
    assert middles == pytest.approx(list(depth.get_xticks())), "a name stands below the middle of its bars"


def test_the_rounds_have_their_own_window_and_the_long_run_where_it_was_measured(drawn: Drawn, tmp_path: Path):
    points = [
        {"round": 0, "accuracy": 0.4, "ci": [0.3, 0.6], "long_run": None},
        {"round": 1, "accuracy": 0.5, "ci": [0.4, 0.7], "long_run": 0.45},
    ]
    pictures.rounds_curve(points, tmp_path / "rounds.png")
    (axis,) = drawn.panels
    assert [(0.0, 0.4), (1.0, 0.5)] in lines(axis)
    assert [(1.0, 0.45)] in lines(axis)
    assert spans(axis) == [[(0.3, 0.6), (0.4, 0.7)]]
    assert [*axis.get_xticks()] == [0, 1]
    assert drawn.legends() == [["long run", "own window"]]
    pictures.rounds_curve(points[:1], tmp_path / "rounds.png")
    assert drawn.legends() == [["own window"]]


def test_a_curriculum_has_a_row_for_each_kind(drawn: Drawn, tmp_path: Path):
    over_time = {
        kind: {"asked": [(1, share), (3, share)], "rate": [(1, 0.0), (3, 0.5)]}
        for kind, share in (("a", 0.2), ("b", 0.3))
    }
    pictures.kinds(over_time, tmp_path / "kinds.png")
    share_panel, rate = drawn.panels
    assert [text.get_text() for text in share_panel.get_yticklabels()] == ["a", "b"]
    assert [text.get_text() for text in rate.get_yticklabels() if text.get_text()] == []
    (shares,), (rates,) = share_panel.images, rate.images
    assert shares.get_array().tolist() == [[0.2, 0.2], [0.3, 0.3]]
    assert rates.get_array().tolist() == [[0.0, 0.5]] * 2
    assert (shares.get_clim(), rates.get_clim()) == ((0.0, 0.3), (0.0, 1.0))
    assert shares.get_extent() == [0.5, 3.5, 1.5, -0.5]
