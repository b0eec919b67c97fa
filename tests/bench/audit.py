"""Audits every environment that this project can play, and writes what was found.

Run: `make audit`, or some rows: `make audit AUDIT="--only letter_counting Mastermind-v0"`. Writes envs/AUDIT.md, a row
for each environment, and flows/audit/known.json, of which a run's preflight warns. With --only the other rows stay.
Ends with code 1 if an environment of this project fails a check.
"""

import argparse
import json
import os
import re
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import ExitStack, nullcontext
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

from apprentice.envs.catalog import CATALOGUE, EnvironmentSpec
from apprentice.envs.folders import add
from apprentice.envs.serving.process import local_server
from apprentice.envs.wire.server import EnvironmentServer
from apprentice.flows.audit.audit import CHECKS, KNOWN, audit
from apprentice.flows.audit.play.findings import CheckResult
from apprentice.flows.audit.play.subject import Extent, Needs, Subject
from apprentice.flows.environment_list import settings_from_a_recipe
from apprentice.flows.runtime.servers import completed
from tests.bench.textarena_game import made_here

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "envs" / "AUDIT.md"
HEAD = ROOT / "tests" / "bench" / "audit_head.md"
PACKAGES = ROOT / "tests" / "envs" / "packages"
BRIEF = Extent(seeds=24, samples=300, seconds=2.0)
"""For each of many datasets."""
SESSIONS = 6
GAME = ROOT / "tests" / "bench" / "textarena_game.py"
"""The environment that plays any of TextArena's games."""
GAMES = "TextArena's games for one player"
"""The group of them. No recipe can name one, so a run is not told of their findings."""
PER_SERVER = ("robustness.capacity", "robustness.given_back", "version.key", "version.original", "latency", "sessions")
"""Checks of a server, not of a dataset."""


class Case(NamedTuple):
    """An environment under certain settings."""

    group: str
    environment: str
    settings: dict[str, Any]
    extent: Extent = Extent()

    @property
    def name(self) -> str:
        texts = [f"{name}: {value}" for name, value in self.settings.items() if name != "dataset"]
        return str(
            self.settings.get("dataset")
            or self.settings.get("game")
            or " ".join([self.environment, ", ".join(texts)]).strip()
        )


class Audited(NamedTuple):
    """What was found about a case; `trouble`: why it could not be played."""

    case: Case
    findings: list[CheckResult]
    questions: str
    seconds: float


def cases() -> Iterator[Case]:
    """Every case that can be played here, the slowest first."""
    for name in sorted(CATALOGUE.keys() - {"multi"}):
        yield Case("ours", name, settings_from_a_recipe(name)[0])
    yield Case("ours", "wordle", {"candidates": 4})
    yield Case("TextArena", "wordle", {"rules": "textarena"})
    for difficulty in ("very-easy", "easy", "normal", "medium", "hard"):
        yield Case("TextArena", "sudoku", {"rules": "textarena", "difficulty": difficulty}, BRIEF)
    from reasoning_gym.factory import DATASETS

    parts = [{"name": "leg_counting"}, {"name": "spell_backward"}]
    yield Case("Reasoning Gym", "reasoning_gym", {"dataset": "composite", "dataset_specs": parts}, BRIEF)
    for name in sorted(DATASETS.keys() - {"composite"}):
        yield Case("Reasoning Gym", "reasoning_gym", {"dataset": name}, BRIEF)
    if find_spec("verifiers") is not None:
        for kind in ("single", "tools"):
            yield Case("verifiers", "verifiers", {"package": "vf-letters", "arguments": {"kind": kind}}, BRIEF)


def textarena_cases() -> Iterator[Case]:
    """TextArena's games for one player, as TextArena makes them. They are played in the environment at `GAME`."""
    for name in made_here()[0]:
        yield Case(GAMES, GAME.stem, {"game": name}, BRIEF)


_opened = ExitStack()


@cache
def served(environment: str, hash_seed: int) -> EnvironmentServer:
    """A server of this process, for all of its cases."""
    if environment == "verifiers":  # its package is one of the tests
        os.environ["PYTHONPATH"] = os.pathsep.join([str(PACKAGES), os.environ.get("PYTHONPATH", "")])
    given = ("apprentice.envs.serving.serve", environment, "--max-sessions", "16")
    return EnvironmentServer(url=_opened.enter_context(local_server(*given, hash_seed=hash_seed)))


def audited(case: Case) -> Audited:
    start = perf_counter()
    server = served(case.environment, 0)
    subject = Subject(
        server,
        completed(EnvironmentSpec(name=case.environment, settings=case.settings), server),
        Needs(0, 0, SESSIONS),
        extent=case.extent,
        elsewhere=lambda: nullcontext(served(case.environment, 1)),
    )
    report = audit(subject)
    questions = next(each.found for each in report.findings if each.check == "seeds.windows")
    return Audited(case, report.findings, questions, perf_counter() - start)


def wrong(one: Audited) -> list[CheckResult]:
    """The failed checks, errors first; not those of a server."""
    found = [each for each in one.findings if each.status == "failed" and each.severity != "note"]
    return sorted((each for each in found if each.check not in PER_SERVER), key=lambda each: each.severity != "error")


def as_known(results: list[Audited]) -> list[dict[str, Any]]:
    """What the preflight is told of."""
    return [
        {
            "environment": one.case.environment,
            "settings": one.case.settings,
            "check": each.check,
            "severity": each.severity,
            "found": each.found,
            "evidence": [str(shown) for shown in each.evidence][:1],
        }
        for one in results
        for each in wrong(one)
        if one.case.group != GAMES
    ]


def runnable(one: Audited, finding: CheckResult) -> str:
    """A command that shows the finding's evidence without this project, where there is one."""
    if not finding.evidence or one.case.environment not in ("reasoning_gym", GAME.stem):
        return ""
    if one.case.environment == GAME.stem:
        return _in_textarena(one.case.settings["game"], finding)
    seed, calls, _ = finding.evidence[0]
    name = one.case.settings["dataset"]
    made = f"d = reasoning_gym.create_dataset({name!r}, seed={seed}, size=1); "
    shown = f"d.score_answer({calls[0][1].get('answer')!r}, d[0])" if calls else "d[0]['question']"
    return f'python -c "import reasoning_gym; {made}print({shown})"'.replace("|", "\\|")


def _in_textarena(game: str, finding: CheckResult) -> str:
    """A command that makes the game, and plays the moves of the evidence; beside another game where that matters."""
    seed, calls, _ = finding.evidence[0]
    moves = [str(given.get("move", "")) for _, given in calls]
    if not all(move.isprintable() and '"' not in move and len(move) < 100 for move in moves):
        return ""
    steps = [move if "[" in move else f"[{move}]" for move in moves]
    made = f"import textarena as t; g = t.make({game!r}); g.reset(num_players=1, seed={seed}); "
    other = ""
    if finding.check in ("isolation.interleaved", "seeds.load"):
        other = f"o = t.make({game!r}); o.reset(num_players=1, seed={finding.evidence[-1].seed}); "
    played = f"print([g.step(m)[0] for m in {steps}], g.get_observation()[1][-200:], g.close())"
    return f'python -c "{made}{other}{played if steps else "print(g.get_observation()[1])"}"'


class Row(NamedTuple):
    """What the page has of a case."""

    group: str
    name: str
    result: str
    """The failed checks with their severities, or that it is sound."""
    questions: str
    seconds: str
    checks: str
    """How many the audit had: fewer than now in an older row."""
    evidence: str
    """Markdown; empty if nothing was found."""

    def __str__(self) -> str:
        return f"| `{self.name}` | {self.result} | {self.questions} | {self.seconds} | {self.checks} |"


TITLES = "| environment | result | questions in 200 or 1,000 seeds | s | checks |"
A_ROW = re.compile(r"\| `(.+?)` \| (.+?) \| (.+) \| (\d+) \| (\d+) \|")
OF_A_CASE = re.compile(r"^`(.+?)`, [a-z._]+: ")
FAILED = re.compile(r"\*\*(\S+?)\*\*")


def row(one: Audited) -> Row:
    """Return the row of a case that was audited."""
    found = "; ".join(f"**{each.check}** ({each.severity})" for each in wrong(one)) or "sound"
    lines: list[str] = []
    for each in wrong(one):
        lines += [f"`{one.case.name}`, {each.check}: {each.found}.", ""]
        lines += ["```text", *(str(shown)[:400] for shown in each.evidence[:2]), "```", ""] if each.evidence else []
        if command := runnable(one, each):
            lines += ["```bash", command, "```", ""]
    questions = one.questions.replace("|", "\\|")
    return Row(
        one.case.group, one.case.name, found, questions, f"{one.seconds:.0f}", str(len(one.findings)), "\n".join(lines)
    )


def rows_in(text: str) -> list[Row]:
    """Return the rows of a page."""
    _, _, tables = text.partition("## What `make audit` found")
    tables, _, shown = tables.partition("### Evidence")
    evidence: dict[str, str] = {}
    name = ""
    for line in shown.strip().splitlines():
        if evidence_text := OF_A_CASE.match(line):
            name = evidence_text[1]
        evidence[name] = f"{evidence.get(name, '')}{line}\n"
    rows, group = [], ""
    for line in tables.splitlines():
        group = line.removeprefix("### ") if line.startswith("### ") else group
        if group and (cells := A_ROW.fullmatch(line)):
            is_wrong = FAILED.search(cells[2])
            evidence_text = evidence[cells[1]].strip() + "\n" if is_wrong else ""
            rows.append(Row._make((group, *cells.groups(), evidence_text)))
    return rows


def merged(before: list[Row], now: list[Row]) -> list[Row]:
    """Return the rows with those of now in the places of the same cases before; new ones follow their group."""
    ours = {(each.group, each.name): each for each in now}
    rows = [ours.pop((each.group, each.name), each) for each in before]
    groups = dict.fromkeys(each.group for each in (*rows, *now))
    rows += ours.values()
    return [each for group in groups for each in rows if each.group == group]


def page(rows: list[Row]) -> str:
    """The page: its head, which is written by hand, and the tables."""
    lines = [HEAD.read_text().rstrip(), ""]
    lines += ["## What `make audit` found", ""]
    kinds = Counter(check for each in rows for check in FAILED.findall(each.result))
    failing = sum(bool(FAILED.search(each.result)) for each in rows)
    versions = " and ".join(f"{name} {version(name)}" for name in ("reasoning-gym", "textarena"))
    older = Counter(each.checks for each in rows if each.checks != str(len(CHECKS)))
    ages = ", ".join(f"{count} of them by an earlier audit with {checks}" for checks, count in older.items())
    made = f"{len(CHECKS)} checks{', ' if ages else ''}{ages}"
    lines += [
        f"{len(rows)} environments and datasets under default settings, with {versions}; {made}. {failing} have "
        f"findings. A run warns before it begins if it uses one of them; {GAMES} cannot be named in a recipe. Evidence "
        "follows the tables.",
        "",
    ]
    if kinds:
        lines += ["| check | environments |", "| --- | --- |"]
        lines += [f"| `{check}` | {count} |" for check, count in kinds.most_common()]
        lines += [""]
    for group in dict.fromkeys(each.group for each in rows):
        lines += [f"### {group}", "", TITLES, "| --- | --- | --- | --- | --- |"]
        lines += [str(each) for each in rows if each.group == group]
        lines += [""]
    lines += ["### Evidence", ""]
    lines += [each.evidence for each in rows if each.evidence]
    return "\n".join(lines).rstrip() + "\n"


def known_now(before: list[dict[str, Any]], results: list[Audited]) -> list[dict[str, Any]]:
    """Return what the preflight is told of: what is known of the cases, and what was known of others."""
    audited_now = [(one.case.environment, one.case.settings) for one in results]
    kept = [each for each in before if (each["environment"], each["settings"]) not in audited_now]
    return sorted(kept + as_known(results), key=lambda each: (each["environment"], json.dumps(each["settings"])))


def write(results: list[Audited], also_others: bool) -> None:
    """Write the page and the file, with what they have of other cases as well."""
    known_before = json.loads(KNOWN.read_text()) if also_others else []
    rows = [row(one) for one in results]
    PAGE.write_text(page(merged(rows_in(PAGE.read_text()), rows) if also_others else rows))
    KNOWN.write_text(json.dumps(known_now(known_before, results), indent=1, ensure_ascii=False) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="rows of the page, or environments; others stay")
    parser.add_argument("--look", action="store_true", help="print what is found, and write nothing")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--seconds", type=float, help="of a check that plays many episodes; more on a busy machine")
    arguments = parser.parse_args()
    add(GAME)
    chosen = [*cases(), *textarena_cases()]
    if arguments.only:
        names = {name for case in chosen for name in (case.name, case.environment)}
        if unknown := set(arguments.only) - names:
            parser.error(f"no row or environment has the name {', '.join(sorted(unknown))}")
        chosen = [case for case in chosen if {case.name, case.environment} & set(arguments.only)]
    if arguments.seconds:
        chosen = [case._replace(extent=case.extent._replace(seconds=arguments.seconds)) for case in chosen]
    start, results = perf_counter(), []
    with ProcessPoolExecutor(arguments.processes) as pool:
        waiting = {pool.submit(audited, case): place for place, case in enumerate(chosen)}
        for done in as_completed(waiting):
            if failed := done.exception():
                pool.shutdown(wait=False, cancel_futures=True)
                raise failed
            one = done.result()
            results.append((waiting[done], one))
            if arguments.only and not arguments.look:  # each when it is done: an interruption costs one row
                write([one], also_others=True)
            checks = ", ".join(each.check for each in wrong(one)) or "sound"
            print(f"{len(results)} of {len(chosen)}: {one.case.name}: {checks} ({one.seconds:.0f} s)", flush=True)
    ordered = [one for _, one in sorted(results, key=lambda each: each[0])]
    if arguments.look:
        for one in ordered:
            print(*(f"{each.check}: {each.found} {[*map(str, each.evidence)]}" for each in wrong(one)), sep="\n")
        return
    if not arguments.only:
        write(ordered, also_others=False)
    print(f"{PAGE} and {KNOWN}, in {perf_counter() - start:.0f} s")
    sys.exit(any(wrong(one) for one in ordered if one.case.group == "ours"))


if __name__ == "__main__":
    main()
