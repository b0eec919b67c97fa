"""A run's page in Prefect leads to its curves and to what it uses of the Hub; nothing is pickled on the way."""

from pathlib import Path

import pytest
from prefect import flow
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId
from prefect.context import FlowRunContext

from apprentice.flows.recipe.loading import load_recipe
from apprentice.flows.report import link_up

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
