"""Audits every environment that this project can play, and writes what was found.

Run: `make audit`. Writes envs/AUDIT.md, a row for each environment, and flows/audit/known.json, of which a run's
preflight warns. Ends with code 1 if an environment of this project fails a check.
"""

import argparse
import json
import os
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
from apprentice.envs.serving.process import local_server
from apprentice.envs.wire.server import EnvironmentServer
from apprentice.flows.audit.audit import KNOWN, audit
from apprentice.flows.audit.subject import Extent, Finding, Needs, Subject
from apprentice.flows.cli.choice import settings_from_a_recipe
from apprentice.flows.runtime.servers import completed

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "envs" / "AUDIT.md"
HEAD = ROOT / "tests" / "bench" / "audit_head.md"
PACKAGES = ROOT / "tests" / "envs" / "packages"
BRIEF = Extent(seeds=24, asked=300, seconds=2.0)
"""For each of many datasets."""
SESSIONS = 6
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
        return str(self.settings.get("dataset") or " ".join([self.environment, ", ".join(texts)]).strip())


class Audited(NamedTuple):
    """What was found about a case; `trouble`: why it could not be played."""

    case: Case
    findings: list[Finding]
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


_opened = ExitStack()


@cache
def served(environment: str, hash_seed: int) -> EnvironmentServer:
    """A server of this process, for all of its cases."""
    if environment == "verifiers":  # its package is one of the tests
        os.environ["PYTHONPATH"] = os.pathsep.join([str(PACKAGES), os.environ.get("PYTHONPATH", "")])
    given = ("apprentice.envs.serving.serve", environment, "--max-sessions", "16")
    return EnvironmentServer(url=_opened.enter_context(local_server(*given, hash_seed=hash_seed)))


def audited(case: Case) -> Audited:
    begun = perf_counter()
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
    return Audited(case, report.findings, questions, perf_counter() - begun)


def wrong(one: Audited) -> list[Finding]:
    """The failed checks, errors first; not those of a server."""
    found = [each for each in one.findings if each.status == "failed" and each.severity != "note"]
    return sorted((each for each in found if each.check not in PER_SERVER), key=lambda each: each.severity)


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
    ]


def runnable(one: Audited, finding: Finding) -> str:
    """A command that shows the finding's evidence without this project, where there is one."""
    if one.case.environment != "reasoning_gym" or not finding.evidence:
        return ""
    seed, calls, _ = finding.evidence[0]
    name = one.case.settings["dataset"]
    made = f"d = reasoning_gym.create_dataset({name!r}, seed={seed}, size=1); "
    shown = f"d.score_answer({calls[0][1].get('answer')!r}, d[0])" if calls else "d[0]['question']"
    return f'python -c "import reasoning_gym; {made}print({shown})"'.replace("|", "\\|")


def page(results: list[Audited], seconds: float) -> str:
    """The page: its head, which is written by hand, and the tables."""
    lines = [HEAD.read_text().rstrip(), ""]
    lines += ["## What `make audit` found", ""]
    kinds = Counter(each.check for one in results for each in wrong(one))
    failing = sum(bool(wrong(one)) for one in results)
    versions = " and ".join(f"{name} {version(name)}" for name in ("reasoning-gym", "textarena"))
    lines += [
        f"{len(results)} environments and datasets under default settings, in {seconds / 60:.0f} minutes on two cores, "
        f"with {versions}. {failing} have findings: a run that uses one of them warns before it begins. Evidence "
        "follows the tables.",
        "",
    ]
    if kinds:
        lines += ["| check | environments |", "| --- | --- |"]
        lines += [f"| `{check}` | {count} |" for check, count in kinds.most_common()]
        lines += [""]
    for group in dict.fromkeys(one.case.group for one in results):
        lines += [
            f"### {group}",
            "",
            "| environment | result | questions in 200 or 1,000 seeds | s |",
            "| --- | --- | --- | --- |",
        ]
        for one in (each for each in results if each.case.group == group):
            found = "; ".join(f"**{each.check}** ({each.severity})" for each in wrong(one)) or "sound"
            lines += [f"| `{one.case.name}` | {found} | {one.questions} | {one.seconds:.0f} |"]
        lines += [""]
    lines += ["### Evidence", ""]
    for one in results:
        for each in wrong(one):
            lines += [f"`{one.case.name}`, {each.check}: {each.found}.", ""]
            lines += ["```text", *(str(shown)[:400] for shown in each.evidence[:2]), "```", ""] if each.evidence else []
            if command := runnable(one, each):
                lines += ["```bash", command, "```", ""]
    return "\n".join(lines).rstrip() + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", help="cases whose name has this in it; nothing is written")
    parser.add_argument("--processes", type=int, default=2)
    arguments = parser.parse_args()
    chosen = [case for case in cases() if not arguments.only or arguments.only in f"{case.environment} {case.name}"]
    begun, results = perf_counter(), []
    with ProcessPoolExecutor(arguments.processes) as pool:
        waiting = {pool.submit(audited, case): place for place, case in enumerate(chosen)}
        for done in as_completed(waiting):
            if failed := done.exception():
                pool.shutdown(wait=False, cancel_futures=True)
                raise failed
            one = done.result()
            results.append((waiting[done], one))
            told = ", ".join(each.check for each in wrong(one)) or "sound"
            print(f"{len(results)} of {len(chosen)}: {one.case.name}: {told} ({one.seconds:.0f} s)", flush=True)
    ordered = [one for _, one in sorted(results, key=lambda each: each[0])]
    if arguments.only:
        for one in ordered:
            print(*(f"{each.check}: {each.found} {[*map(str, each.evidence)]}" for each in wrong(one)), sep="\n")
        return
    KNOWN.write_text(json.dumps(as_known(ordered), indent=1, ensure_ascii=False) + "\n")
    PAGE.write_text(page(ordered, perf_counter() - begun))
    print(f"{PAGE} and {KNOWN}, in {perf_counter() - begun:.0f} s")
    sys.exit(any(wrong(one) for one in ordered if one.case.group == "ours"))


if __name__ == "__main__":
    main()
