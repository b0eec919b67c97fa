"""A run's page in Prefect leads to its curves and to what it uses of the Hub; nothing is pickled on the way."""

from pathlib import Path
from uuid import UUID

import pytest
from prefect import flow
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId
from prefect.context import FlowRunContext

from apprentice.flows.dashboard_report import addresses, link_up, show_in_prefect
from apprentice.flows.pages.report_page import as_markdown_page, as_report_page
from apprentice.flows.recipe.loading import load_recipe
from apprentice.tasks.reporting import announce
from apprentice.tasks.reporting.pictures import rates
from tests.flows.pages.hostile_report import report

pytestmark = pytest.mark.long

TOY = Path(__file__).parent.parent.parent / "deployments" / "recipes" / "toy.yaml"


def links(*settings: str) -> dict[str, str]:
    """The links on the page of a run with these settings, by key."""
    recipe = load_recipe(TOY, list(settings))

    @flow(name="linked")
    def run() -> object:
        link_up(recipe)
        context = FlowRunContext.get()
        assert context is not None
        assert context.flow_run is not None
        return context.flow_run.id

    of = FlowRunFilter(id=FlowRunFilterId(any_=[run()]))  # type: ignore[list-item]
    with get_client(sync_client=True) as client:
        return {str(each.key): str(each.data) for each in client.read_artifacts(flow_run_filter=of)}


def test_the_page_leads_to_prefect_and_trackio_where_their_addresses_are_known(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setattr(announce, "run_url", lambda: "http://127.0.0.1:4200/runs/flow-run/1")
    recipe = load_recipe(TOY, ["trackio.url=http://127.0.0.1:7860/"])
    known = addresses(recipe)
    assert known == {
        "Prefect": "http://127.0.0.1:4200/runs/flow-run/1",
        "Trackio": "http://127.0.0.1:7860/?project=toy",
    }
    data = report(tmp_path)
    for text in (
        as_report_page(data | {"dashboards": known}, "{}", {}),
        as_markdown_page(data | {"dashboards": known}),
    ):
        assert all(url in text for url in known.values())
    assert "Dashboards" not in as_report_page(data | {"dashboards": {}}, "{}", {})
    assert "Trackio" not in addresses(load_recipe(TOY, ["trackio.url=http://127.0.0.1:7860", "report_to=[]"]))
    space = addresses(load_recipe(TOY, ["trackio.space_id=owner/curves"]))["Trackio"]
    assert space.endswith("/spaces/owner/curves/?project=toy")


@pytest.mark.usefixtures("prefect_server")
def test_a_run_has_its_report_and_all_its_pictures_in_prefect_and_knows_its_own_address(tmp_path: Path):
    picture = rates(
        {"sft": {"accuracy": 0.5, "ci": {"accuracy": (0.4, 0.6)}}}, {"sft": "SFT"}, tmp_path / "accuracy.png"
    )

    @flow(name="shown")
    def run() -> tuple[str, str]:
        show_in_prefect(tmp_path, "# Said", {"accuracy": picture})
        context = FlowRunContext.get()
        assert context is not None
        assert context.flow_run is not None
        return str(context.flow_run.id), announce.run_url()

    named, url = run()
    assert url.endswith(f"/runs/flow-run/{named}")
    of = FlowRunFilter(id=FlowRunFilterId(any_=[UUID(named)]))
    with get_client(sync_client=True) as client:
        found = {str(each.key): each for each in client.read_artifacts(flow_run_filter=of)}
    assert found["report"].data == "# Said"
    assert str(tmp_path / "report.html") in (found["report"].description or "")
    assert str(found["accuracy"].data).startswith("data:image/png;base64,")
    assert announce.run_url() == "", "outside of a flow"


@pytest.mark.usefixtures("prefect_server")
def test_a_run_s_page_leads_to_its_curves_and_to_the_hub():
    found = links(
        "trackio.url=http://127.0.0.1:7860",
        "store.hub.namespace=team",
        "server.space=owner/words",
        "server.url=https://owner-words.hf.space",
    )
    assert found["trackio"].endswith("(http://127.0.0.1:7860/?project=toy)")
    assert found["hub"].endswith("/team)")
    assert found["space"].endswith("/spaces/owner/words)")
    assert links() == {}
    dotted = links("trackio.url=http://127.0.0.1:7860", "name=toy-0.6b")
    assert dotted["trackio"].endswith("/?project=toy-06b)"), "Trackio knows no dots"


def test_no_flow_pickles_what_it_gives_or_fails_with():
    from apprentice.flows.retrain import retrain
    from apprentice.flows.stages import STAGES
    from apprentice.flows.watch import watch

    for each in (retrain, watch, *STAGES.values()):
        assert each.result_serializer == "json", each.name
