"""Pictures of Prefect's own pages during and after a run, and of the run's report: `make pictures`.

In: nothing. Out: docs/*.png. What a page must say is asserted before it is pictured.
"""

import shutil
import tempfile
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, expect, sync_playwright

from apprentice.flows.recipe.loading import load_recipe
from tests.browser import NAMES
from tests.e2e.cluster import ROOT, Cluster, until
from tests.e2e.page_pictures import DOCS, take_page
from tests.e2e.whole import client_of, ended, ready, start


class Pictures:
    """A browser on the server's interface."""

    def __init__(self, page: Page, ui: str):
        self._page = page
        self._ui = ui

    def take(self, name: str, path: str, *says: str, tab: str = "") -> None:
        """Opens a page, waits until it says all of `says`, and keeps the picture as docs/<name>.png."""
        self._page.goto(f"{self._ui}{path}")
        if tab:
            self._page.get_by_text(tab, exact=True).first.click()
        for text in says:
            expect(self._page.get_by_text(text).first).to_be_visible(timeout=30_000)
        self._page.wait_for_load_state("networkidle")
        self._page.wait_for_timeout(1500)  # the graph settles, with nothing in the page that says so
        self._page.screenshot(path=str(DOCS / f"{name}.png"))
        print(f"docs/{name}.png", flush=True)


def main() -> None:
    DOCS.mkdir(exist_ok=True)
    browser = next(found for name in NAMES if (found := shutil.which(name)))
    with (
        tempfile.TemporaryDirectory(prefix="apprentice-pictures-") as folder,
        Cluster(Path(folder)) as cluster,
        sync_playwright() as playwright,
    ):
        ready(cluster)
        opened = playwright.chromium.launch(executable_path=browser, args=["--no-sandbox"])
        page = opened.new_page(viewport={"width": 1400, "height": 900})
        pictures = Pictures(page, cluster.api.removesuffix("/api"))
        laptop = ROOT / "deployments" / "recipes" / "laptop.yaml"
        recipe = load_recipe(laptop, [f"store.path={cluster.store}"]).as_parameters()
        run = start(cluster, "retrain/laptop", {"recipe": recipe, "runs": str(cluster.store / "runs"), "gpu": "a100"})
        client = client_of(cluster)
        deployed = client.read_deployment_by_name("retrain/laptop")
        pictures.take(
            "form",
            f"/deployments/deployment/{deployed.id}/run",
            "The recipe of the run",
            "GRPO begins from the student itself",
        )
        grpo = until("GRPO runs", lambda: running(client, "GRPO"), 400.0)
        until("it makes progress", lambda: progress(client, grpo), 120.0)
        pictures.take("stage", f"/runs/flow-run/{grpo}", "laptop-seed0: GRPO", "Running", "left", tab="Artifacts")
        assert ended(cluster, run, 600.0)["state"] == "Promoted"
        pictures.take("run", f"/runs/flow-run/{run}", "laptop-seed0", "Promoted", "Task Runs")
        pictures.take("runs", "/runs", "laptop-seed0: GRPO", "laptop-seed0: SFT", "retrain")
        pictures.take(
            "report", f"/artifacts/artifact/{artifact(client, 'report')}", "What was learned", "laptop, seed 0"
        )
        take_page(opened, max((cluster.store / "runs").glob("*/report.html")))
        pictures.take("curves", f"/artifacts/artifact/{artifact(client, 'grpo-curves')}", "GRPO of laptop")
        pictures.take("pools", "/work-pools", "cpu", "a100", "Concurrency Limit")
        pictures.take("automations", "/automations", "runs that fell silent", "a retraining that died goes on")


def artifact(client: Any, key: str) -> Any:
    """The newest artifact of that key."""
    from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterKey

    found = client.read_artifacts(artifact_filter=ArtifactFilter(key=ArtifactFilterKey(any_=[key])))
    return max(found, key=lambda each: each.created).id


def running(client: Any, title: str) -> Any:
    """The flow run of a stage, once it runs."""
    for run in client.read_flow_runs():
        if run.name.endswith(title) and run.state.is_running():
            return run.id
    return None


def progress(client: Any, run: Any) -> bool:
    from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId

    of = FlowRunFilter(id=FlowRunFilterId(any_=[run]))
    return any(each.type == "progress" and (each.data or 0) > 20 for each in client.read_artifacts(flow_run_filter=of))


if __name__ == "__main__":
    main()
