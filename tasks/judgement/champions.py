"""Which released model is the champion: a tag in the models' repository.

In: releases. Out: the champion, its history. Tags, as on the Hub:

    champion                                  the one in force; moved last, in one step
    champion-0003-20261121T114500Z-promoted   the third change of champion; never moves
    champion-0004-20261121T120000Z-rollback   back to an earlier one
    rejected-<key>                            a challenger that the gate did not let through
"""

import re
from datetime import UTC, datetime
from typing import Literal, NamedTuple

from apprentice.tasks.artifacts.hub_client import is_away
from apprentice.tasks.artifacts.local import LocalStore
from apprentice.tasks.artifacts.types import Release
from apprentice.tasks.reporting import announce
from apprentice.tasks.reporting.errors import Stop

TAG = "champion"
REJECTED = "rejected-"
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
                self._store.tag(release, f"{REJECTED}{release.key}")
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
