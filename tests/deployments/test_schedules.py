"""A schedule is what it says, comes some day, or is refused before Prefect has it."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from apprentice.deployments import provisioning, schedules, steps
from apprentice.deployments.schedules import check_index, cron_schedule
from apprentice.tasks.reporting.errors import Stop

NO_FIELDS = r"fields in place of five \(minute, hour, day, month, weekday\)"


@pytest.mark.parametrize(
    "cron",
    ["0 3 * * 1", "*/15 * * * *", "0 0 29 2 *", "0 0 31 4,5 *", "0 0 * * 7", "0 0 * * MON-FRI", "@daily", "@weekly"],
)
def test_what_comes_is_a_schedule(cron: str):
    made = cron_schedule(cron, "Europe/Berlin")
    assert (made.cron, made.timezone) == (cron, "Europe/Berlin")


@pytest.mark.parametrize(
    ("cron", "timezone", "why"),
    [
        ("0 0 3 * * 1", "UTC", f"it has 6 {NO_FIELDS}; seconds cannot be given"),
        ("0 0 3 ? * MON *", "UTC", f"it has 7 {NO_FIELDS}; seconds"),
        ("0 3 * *", "UTC", f"it has 4 {NO_FIELDS}\\."),
        ("", "UTC", f"it has 0 {NO_FIELDS}"),
        ("every monday", "UTC", f"it has 2 {NO_FIELDS}"),
        ("0 0 30 2 *", "UTC", "it never comes"),
        ("0 0 31 4 *", "Europe/Berlin", "it never comes"),
        ("0 0 31 2,4,6,9,11 *", "UTC", "it never comes"),
        ("60 * * * *", "UTC", "Invalid cron string"),
        ("0 0 0 * *", "UTC", "Invalid cron string"),
        ("R 3 * * *", "UTC", "Random and Hashed"),
        ("@reboot", "UTC", "Invalid cron string"),
        ("0 3 * * 1", "Berlin", "Invalid timezone"),
        ("0 3 * * 1", "UTC+2", "Invalid timezone"),
        ("0 3 * * 1", "", "the time zone is empty"),
    ],
)
def test_what_is_none_or_never_comes_is_refused_with_the_reason(cron: str, timezone: str, why: str):
    with pytest.raises(Stop, match=f"(?s)is not a schedule: {why}.*--schedule '0 3 \\* \\* 1'"):
        cron_schedule(cron, timezone)


NAMED = {"name": "mine", "entrypoint": "a.b"}


@pytest.mark.parametrize(
    ("deployment", "why"),
    [
        ({"schedules": [{"cron": "0 3 * * 1"}, {"cron": "0 0 3 * * 1", "slug": "x"}]}, "cron: '0 0 3 .* has 6 fields"),
        ({"schedules": [{"cron": "0 0 30 2 *", "timezone": "UTC"}]}, "timezone: 'UTC', and it never comes"),
        ({"schedule": {"cron": "0 0 31 11 *"}}, "it never comes"),
        ({"schedules": [{"cron": "0 3 * * 1", "timezone": "Mars/Base"}]}, "Invalid timezone"),
        ({"schedules": [{"interval": 0}]}, "interval must be positive"),
        ({"schedules": [{"interval": -60}]}, "interval must be positive"),
        ({"schedules": [{"rrule": "FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=30"}]}, "it never comes"),
        ({"schedules": [{"every": "day"}]}, "it has none of cron, interval, rrule"),
    ],
)
def test_an_index_is_refused_with_the_deployment_and_its_schedule(deployment: dict[str, Any], why: str, tmp_path: Path):
    index = tmp_path / "prefect.yaml"
    index.write_text(yaml.safe_dump({"pools": {}, "deployments": [{"name": "other"}, NAMED | deployment]}))
    with pytest.raises(Stop, match=f"prefect.yaml: the deployment mine has the schedule .*{why}"):
        check_index(index)
    with pytest.raises(Stop, match=why):
        list(provisioning.set_up(None, "process", None, 1.0, tmp_path))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "deployment",
    [
        {},
        {"schedules": None},
        {"schedules": [{"cron": "{{ given.cron }}"}]},
        {"schedules": [{"interval": 3600, "anchor_date": "2026-01-01T00:00:00+00:00"}, {"rrule": "FREQ=DAILY"}]},
    ],
)
def test_an_index_with_schedules_that_come_is_accepted(deployment: dict[str, Any], tmp_path: Path):
    (tmp_path / "prefect.yaml").write_text(yaml.safe_dump({"deployments": [NAMED | deployment]}))
    check_index(tmp_path / "prefect.yaml")


def test_the_package_s_own_index_is_accepted():
    check_index(provisioning.FILES / "prefect.yaml")


@pytest.mark.parametrize(
    ("words", "file"),
    [
        (["deploy", "--all"], "prefect.yaml"),
        (["deploy", "--prefect-file", "there/p.yaml"], "there/p.yaml"),
        (["deploy", "--prefect-file=p.yaml", "--all"], "p.yaml"),
    ],
)
def test_a_step_checks_the_index_that_prefect_deploy_reads(
    words: list[str], file: str, monkeypatch: Any, tmp_path: Path
):
    monkeypatch.setattr("sys.argv", ["prefect", *words])
    assert schedules.index_of_this_command() == Path(file)
    monkeypatch.chdir(tmp_path)
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text(yaml.safe_dump({"deployments": [NAMED | {"schedules": [{"cron": "0 0 30 2 *"}]}]}))
    with pytest.raises(Stop, match="it never comes"):
        steps.recipe("toy")
