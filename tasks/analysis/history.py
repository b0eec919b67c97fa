"""The history of a project: its champions, and the rounds that it has run.

Which released model is the champion is a tag in the models' repository. In: releases. Out: the champion, its history.
Tags, as on the Hub:

    champion                                  the one in force; moved last, in one step
    champion-0003-20261121T114500Z-promoted   the third change of champion; never moves
    champion-0004-20261121T120000Z-rollback   back to an earlier one
    rejected-<key>                            a challenger that the gate did not let through

Rounds are read from the records of released models. In: the store. Out: the rounds, the first one first, and rows for
tables. The store's tags and records are the only source: two machines that share a store see the same history, and so
begin the same next round.
"""

import re
from collections import Counter
from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple, TypeVar

from apprentice.tasks.artifacts.hub_client import is_away
from apprentice.tasks.artifacts.lineage import Node, node_of
from apprentice.tasks.artifacts.local import LocalStore
from apprentice.tasks.artifacts.provenance import Provenance, parent
from apprentice.tasks.artifacts.types import (
    Artifact,
    Checkpoint,
    Evaluation,
    KeptRollouts,
    Questions,
    RelabelledRollouts,
    Release,
)
from apprentice.tasks.episodes.record import DATASET, read_episodes, read_rows
from apprentice.tasks.judgement.contents import read_decision
from apprentice.tasks.reporting import announce
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.statistics.differences import level_of
from apprentice.tasks.statistics.intervals import percent, worth
from apprentice.tasks.statistics.rates import answers_of, evaluated_interval

TAG = "champion"
CHANGE = re.compile(rf"{TAG}-(\d{{4,9}})-(\d{{8}}T\d{{6}}Z)-(promoted|rollback)")
"""What the tags of its changes look like; others that begin like them are somebody's own."""


class Change(NamedTuple):
    number: int
    at: str
    """UTC, such as 20261121T114500Z."""
    how: Literal["promoted", "rollback"]
    revision: str


class Champions:
    def __init__(self, store: LocalStore):
        self._store = store

    def current(self) -> Release | None:
        """The champion. Where the tag was lost while it moved, which on the Hub takes two steps: the last one noted."""
        tagged = self._store.tagged(Release, TAG)
        if tagged is None and len(history := self.history()) > 1:
            tagged = self._store.at(Release, history[-1].revision)
        return tagged and _promoted(tagged)

    def history(self) -> list[Change]:
        """Every change, the first one first."""
        changes = []
        for tag, revision in self._store.tags(Release, f"{TAG}-").items():
            if named := CHANGE.fullmatch(tag):
                changes.append(Change(int(named[1]), named[2], named[3], revision))  # type: ignore[arg-type]
        return sorted(changes, key=lambda change: change.number)

    def was_rolled_back(self, weights: str) -> bool:
        """Whether a champion of these weights was taken back and not promoted again since."""
        taken_back = False
        previous = ""
        for change in self.history():
            if change.how == "rollback" and self._weights(previous) == weights:
                taken_back = True
            elif change.how == "rollback" and self._weights(change.revision) == weights:
                taken_back = False
            previous = change.revision
        return taken_back

    def promote(self, release: Release, expecting: Release | None) -> bool:
        """Promotes a release that the gate let through and tags one that it did not; returns whether it is champion.

        Raises Stop when the champion is not the one that the release was compared with any more.
        """
        try:
            if self._store.in_reach:
                return self._settled(release, expecting)
        except Exception as error:  # without the Hub the champion is not seen, or the client says so
            if self._store.in_reach or not (isinstance(error, Stop) or is_away(error)):
                raise
        announce.warn("Who is champion waits for the Hub: run the recipe again when it is back.")
        return False

    def _settled(self, release: Release, expecting: Release | None) -> bool:
        with self._store.locked(Release):
            now = self.current()
            if now is not None and now.revision == release.revision:
                return True
            if not release.promoted:
                self._store.tag(release, f"rejected-{release.key}")
                return False
            if (now and now.revision) != (expecting and expecting.revision):
                raise Stop(
                    "The champion changed while this model was compared with the one before.",
                    "Run the recipe again: it is compared with the new one.",
                )
            self._move(release, "promoted")
        announce.event("champion.promoted", f"champion.{release.repository}", {"revision": release.revision})
        return True

    def roll_back(self, to: int | None = None) -> Release:
        """Makes an earlier champion the champion again: the one before, or that of change `to`. Raises Stop."""
        with self._store.locked(Release):
            now = self.current()
            history = self.history()
            chosen = self._earlier(history, now, to)
            if chosen is None:
                known = ", ".join(str(change.number) for change in history) or "none"
                raise Stop(
                    f"There is no earlier champion {'' if to is None else f'numbered {to} '}to go back to.",
                    f"Changes of champion so far: {known}; see `apprentice champion history`.",
                )
            release = _promoted(self._store.at(Release, chosen.revision))
            self._move(release, "rollback")
            return release

    def _earlier(self, history: list[Change], now: Release | None, to: int | None) -> Change | None:
        """The change numbered `to`, or the last one before the champion first became one."""
        revisions = [change.revision for change in history]
        if now is None or now.revision not in revisions:
            return None
        if to is not None:
            return next((each for each in history if each.number == to and each.revision != now.revision), None)
        before = history[: revisions.index(now.revision)]
        return before[-1] if before else None

    def _move(self, release: Release, how: Literal["promoted", "rollback"]) -> None:
        """Notes the change, then moves the tag. What a process noted that was killed in between is taken back."""
        history = self.history()
        now = self.current()
        noted = history[-1] if history else None
        if noted is not None and noted.revision != (now and now.revision):  # a process ended before it moved the tag
            self._store.untag(Release, self._named(history.pop()))
            noted = None
        if noted is None or noted.revision != release.revision:
            at = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
            self._store.tag(release, self._named(Change(len(history) + 1, at, how, release.revision)))
        self._store.tag(release, TAG)

    def _named(self, change: Change) -> str:
        return f"{TAG}-{change.number:04d}-{change.at}-{change.how}"

    def _weights(self, revision: str) -> str:
        return self._store.at(Release, revision).weights if revision else ""


def _promoted(release: Release) -> Release:
    """The release. Raises Stop where the gate did not let it through: anybody with the right to write sets tags."""
    if not release.promoted:
        raise Stop(
            f"A tag of champions in {release.repository} is on {release.key}, which the gate did not promote.",
            f"Delete that tag ({TAG}, or the {TAG}-… of that change): the last one that was promoted counts again.",
        )
    return release


A = TypeVar("A", bound=Artifact)
REJECTED = "rejected-"


class PastRound(NamedTuple):
    """A round whose gate has decided."""

    number: int
    """0 for the first training and for every plain run of the recipe."""
    release: Release
    node: Node

    @property
    def recipe(self) -> dict[str, Any]:
        """The recipe of the round, as its record has it."""
        return self.node.record.provenance.recipe if self.node.record else {}

    @property
    def trained(self) -> Checkpoint:
        """The model that was released. Raises Stop if it is gone."""
        return self._input(Checkpoint, "trained")

    @property
    def judged(self) -> Evaluation:
        """The evaluation of whoever is champion after the round, on its own window. Raises Stop if it is gone."""
        name = "challenger" if self.release.promoted else "rival"
        return _with_worth(self._node("decision", f"evaluations.{name}"))

    @property
    def questions(self) -> Questions:
        """What the round asked. Raises Stop if it is gone."""
        return self._input(Questions, "decision", "evaluations.challenger", "questions")

    @property
    def kept(self) -> KeptRollouts | None:
        """What SFT learned from in this round; None without SFT."""
        found = self._trained_on()
        return found.artifact if found else None  # type: ignore[return-value]

    def row(self) -> dict[str, str]:
        judged, kept = self.judged, self._trained_on()
        bought, folder = _bought(kept), self.node.fetch()
        return {
            "round": str(self.number),
            "champion's accuracy": percent(judged.accuracy, evaluated_interval(judged)),
            "promoted": "yes" if self.release.promoted else "no",
            "level": f"{level_of(self.number):.2g}" if self.number else "0.05",
            "bought": str(bought.get("episodes", 0)),
            "kept": _players(self.node.store, kept),
            "tokens": f"{bought.get('prompt_tokens', 0) + bought.get('completion_tokens', 0):,}",
            "USD": f"{bought.get('cost_usd', 0.0):.4f}",
            "rung": _level(self.recipe),
            "why not": " ".join(read_decision(folder).reasons) if folder else "",
            "model": self.release.revision[:12],
        }

    def _trained_on(self) -> Node | None:
        """The kept rollouts of this round's own SFT, not those of the champion that it began from."""
        trained = self.node.inputs.get("trained")
        while trained is not None and "kept" not in trained.inputs:
            before = trained.inputs.get("checkpoint")
            trained = before if before is not None and not before.is_a(Release) else None
        return trained.inputs["kept"] if trained else None

    def _input(self, kind: type[A], *path: str) -> A:
        found = self._node(*path).artifact
        assert isinstance(found, kind)
        return found

    def _node(self, *path: str) -> Node:
        node = self.node
        for name in path:
            if name not in node.inputs:
                raise Stop(
                    f"The history of {self.node.ref} is not whole: what its {name} was is gone.",
                    "Restore the artifacts of the earlier rounds, or begin anew under another recipe name.",
                )
            node = node.inputs[name]
        return node


def _with_worth(node: Node) -> Evaluation:
    """The evaluation with what several samples of a question are worth, which older code did not write down: from its
    episodes, or as many as there are questions where these are gone."""
    found, samples = node.artifact, (node.settings.get("spec") or {}).get("samples", 1)
    assert isinstance(found, Evaluation)
    if samples == 1 or found.worth is not None:
        return found
    folder = node.fetch()
    by_question = answers_of(read_episodes(folder)) if folder and (folder / "episodes.jsonl").exists() else {}
    questions = len(by_question) or max(found.n // samples, 1)
    counted = worth(by_question.values()) if by_question else float(questions)
    return found.model_copy(update={"questions": questions, "worth": counted})


def past_rounds(store: LocalStore) -> list[PastRound]:
    """The rounds whose model was released, promoted or not, in their order."""
    champions = Champions(store)
    current, changes = champions.current(), [each.revision for each in champions.history()]
    if changes and changes[-1] != (current and current.revision):  # a process ended before it moved the tag
        changes.pop()
    known: dict[str, Node] = {}
    rounds = []
    for revision in dict.fromkeys([*changes, *store.tags(Release, REJECTED).values()]):
        release = store.at(Release, revision)
        node = node_of(store, parent(release), known)
        provenance = node.record.provenance if node.record else Provenance()
        number = (provenance.recipe.get("round") or {}).get("number", 0)
        rounds.append((number, provenance.made_at, PastRound(number, release, node)))
    return [each for *_, each in sorted(rounds, key=lambda row: row[:2])]


def _bought(kept: Node | None) -> dict[str, Any]:
    """What the teacher's episodes of a round counted, or its verdicts on rows of a dataset; empty where no teacher was
    asked."""
    rollouts = kept.inputs.get("rollouts") if kept else None
    if rollouts and rollouts.is_a(RelabelledRollouts):
        judged = sum(rollouts.counts.get(name, 0) for name in ("confirmed", "replaced", "undecided"))
        return rollouts.counts | {"episodes": judged}
    return rollouts.counts if rollouts and not rollouts.is_of_a_dataset else {}


def _players(store: LocalStore, kept: Node | None) -> str:
    folder = kept.fetch() if kept else None
    if kept is None or folder is None:
        return "0"
    rollouts = kept.inputs.get("rollouts")
    others = DATASET if rollouts and rollouts.is_of_a_dataset else "the teacher"
    counted = Counter(row.get("player") or others for row in read_rows(folder / "kept.jsonl"))
    return ", ".join(f"{count} by {player}" for player, count in counted.items())


def _level(recipe: dict[str, Any]) -> str:
    levels = (recipe.get("improve") or {}).get("ladder") or []
    settings = (recipe.get("environment") or {}).get("settings")
    return f"{levels.index(settings) + 1} of {len(levels)}" if settings in levels else "–"
