"""The experiment trackers to which a training reports its curves while it runs.

In: the recipe's `report_to` and `trackio`, a trainer. Out: TRL's arguments, a Weights & Biases run for each training,
callbacks. Stop, before a run, when a tracker cannot take its curves.
Why own code for Trackio: it looks up its Space before the first step, and an error there would end the training. Errors
after that it handles itself: it keeps the metrics in the folder and sends them with the next training.
"""

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from apprentice.tasks.artifacts.hub_client import ask, is_away
from apprentice.tasks.engine.stage import StageContext
from apprentice.tasks.engine.trackio_folder import FOLDER, say_ignored, share_curves
from apprentice.tasks.episodes.texts import read_json
from apprentice.tasks.reporting import announce
from apprentice.tasks.reporting.broken_packages import broken_package, imported
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.reporting.safe_text import one_line
from apprentice.tasks.settings.trackers import Reporter, TrackioSpec

if TYPE_CHECKING:
    from apprentice.tasks.engine.run import RunContext
    from apprentice.tasks.engine.stage import StageContext

PROJECT = {"wandb": "WANDB_PROJECT", "mlflow": "MLFLOW_EXPERIMENT_NAME"}
"""The environment variables from which transformers reads the project's name."""


OFFLINE = ("offline", "dryrun")
"""WANDB_MODE, where the curves stay on this machine and no key is needed."""
ANSWERS = 15
"""Seconds in which a tracker's server must answer before a run."""


def check_reporters(names: Sequence[Reporter], project: str = "") -> None:
    """Raises Stop when a tracker cannot take a training's curves: it is missing, broken, switched off or out of reach.

    What the shell says of one run is removed, and said: each training has its own. Call it after Trackio's folder is
    set, which Trackio reads where it is imported.
    """
    for name in names:
        install = f"openenv-apprentice[{name}]" if name in PROJECT else "openenv-apprentice"
        if find_spec(name) is None:
            raise Stop(
                f"report_to names {name}, which is not installed.",
                f"Install it (pip install '{install}'), or remove it from report_to.",
            )
        imported(name, f"report_to: {name}", install)
    if "trackio" in names:
        say_ignored()
    if "wandb" in names:
        _check_wandb()
    if "mlflow" in names:
        _check_mlflow(project)


def _is_on(variable: str) -> bool:
    return os.environ.get(variable, "").lower() in ("1", "true", "yes", "on")


def _switched_off(name: Reporter, variable: str) -> Stop:
    return Stop(
        f"report_to names {name}, and {variable}={os.environ[variable]} in the shell switches it off.",
        f"Unset {variable}, or remove {name} from report_to.",
    )


def _check_wandb() -> None:
    mode = os.environ.get("WANDB_MODE", "")
    if mode == "disabled" or _is_on("WANDB_DISABLED"):
        raise _switched_off("wandb", "WANDB_MODE" if mode == "disabled" else "WANDB_DISABLED")
    if mode in OFFLINE:
        return
    import wandb  # type: ignore[import-not-found]

    offline = "WANDB_MODE=offline to keep the curves on this machine."
    if not os.environ.get("WANDB_API_KEY") and wandb.api.api_key is None:  # of `wandb login`
        raise Stop(
            "report_to names wandb, and there is no key for it: the training would wait for input.",
            f"Set WANDB_API_KEY, or {offline}",
        )
    try:
        wandb.login(verify=True, timeout=ANSWERS)
    except (wandb.Error, ValueError, OSError) as error:
        raise Stop(
            f"report_to names wandb, which does not let this machine in: {one_line(str(error))[:200].rstrip('.')}.",
            f"Correct WANDB_API_KEY, WANDB_BASE_URL or WANDB_MODE, run again once it answers, or set {offline}",
        ) from error


def _check_mlflow(project: str) -> None:
    """Opens the experiment, as transformers does when a training begins."""
    if _is_on("DISABLE_MLFLOW_INTEGRATION"):
        raise _switched_off("mlflow", "DISABLE_MLFLOW_INTEGRATION")
    if os.environ.pop("MLFLOW_RUN_ID", None):
        announce.say("MLFLOW_RUN_ID is ignored: each training is a run of its own.")
    if not isinstance(read_json(os.environ.get("MLFLOW_TAGS") or "{}"), dict):
        raise Stop("MLFLOW_TAGS in the shell is no JSON object.", 'Correct or unset it, such as {"team": "ours"}.')
    import mlflow  # type: ignore[import-not-found]

    patient = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1", "MLFLOW_HTTP_REQUEST_TIMEOUT": str(ANSWERS)}
    ours = {name: value for name, value in patient.items() if name not in os.environ}
    os.environ |= ours
    try:
        mlflow.set_experiment(os.environ.get(PROJECT["mlflow"]) or project)
    except Exception as error:  # MLflow's own, and what its stores raise
        where = os.environ.get("MLFLOW_TRACKING_URI", "")
        password = urlsplit(where).netloc.rpartition("@")[0]
        said = one_line(f"{where or 'the default store'}: {error}")
        said = said.replace(password, "***")[:300] if password else said[:300]
        raise broken_package(error) or Stop(
            f"report_to names mlflow, which cannot open its experiment at {said.rstrip('.')}.",
            "Correct MLFLOW_TRACKING_URI and MLFLOW_EXPERIMENT_NAME, start that server, or remove mlflow from "
            "report_to.",
        ) from error
    finally:
        for name in ours:
            del os.environ[name]


def report_to(names: Sequence[Reporter], project: str) -> list[str]:
    """TRL's argument `report_to`. Sets the other trackers' project to `project` unless it is set already."""
    for name in names:
        if name in PROJECT:
            os.environ.setdefault(PROJECT[name], project)
    return list(names) or ["none"]


@contextmanager
def run_of_its_own(context: "StageContext", trainer: Any) -> Iterator[None]:
    """Gives a training its own run in Weights & Biases, in the group of its recipe; WANDB_RUN_GROUP names another.

    Transformers logs to the run that is open. All trainings of a process would share the first one's, whose steps then
    begin again with each training. A training that resumes continues its run.
    """
    if "wandb" not in trainer.args.report_to or not trainer.is_world_process_zero():
        yield
        return
    import wandb  # type: ignore[import-not-found]

    recipe = hashlib.sha256(json.dumps(context.run.recipe, sort_keys=True).encode()).hexdigest()
    with wandb.init(
        project=os.environ[PROJECT["wandb"]],
        name=trainer.args.run_name,
        group=os.environ.get("WANDB_RUN_GROUP") or f"{context.run.store.project} {recipe[:8]}",
        id=context.scratch.name,
        resume="allow",
        reinit="finish_previous",
    ):
        yield


PATIENCE = 20.0
"""Seconds to wait for the Hub at the start of a run."""


def trackio_arguments(run: "RunContext") -> dict[str, Any]:
    return {
        "project": run.store.project,
        "trackio_space_id": run.trackio.space_id,
        "trackio_static_space_id": False,  # else each training creates another Space with a copy
        "hub_private_repo": run.trackio.private,
    }


def log_by_step(trainer: Any) -> None:
    """Replaces transformers' callback. It falls back to the folder if the Space is unreachable when a training starts.
    It logs by training step, where transformers' logs by number of logs."""
    from transformers.integrations import TrackioCallback
    from transformers.integrations.integration_utils import rewrite_logs

    from apprentice.tasks.artifacts.hub_http import TIMEOUT, be_patient

    class ByStep(TrackioCallback):
        def __init__(self):
            super().__init__()
            self._trackio = _WithoutDashboard(self._trackio)

        def on_log(
            self, args: Any, state: Any, control: Any, model: Any = None, logs: Any = None, **given: Any
        ) -> None:
            if not self._initialized:
                self.setup(args, state, model)
            if state.is_world_process_zero and "train_runtime" not in logs:  # skips the final summary
                self._trackio.log(rewrite_logs(logs), step=state.global_step)

        def setup(self, args: Any, state: Any, model: Any, **given: Any) -> None:
            if args.trackio_space_id is None:
                super().setup(args, state, model, **given)
                return
            be_patient(TIMEOUT)  # the client has no timeout, so a hanging Hub would block the device forever
            try:
                super().setup(args, state, model, **given)
            except Exception as error:  # any error: logging must not stop a training
                _warn(args.trackio_space_id, args.project, type(error).__name__)
                args.trackio_space_id = None
                super().setup(args, state, model, **given)

    if trainer.pop_callback(TrackioCallback) is not None:
        trainer.add_callback(ByStep())


class _WithoutDashboard:
    """Trackio, which in a notebook starts a dashboard and shows its address, with the token that may write, in the
    cell; `apprentice dashboard` shows the curves."""

    def __init__(self, trackio: Any):
        self._trackio = trackio

    def __getattr__(self, name: str) -> Any:
        return getattr(self._trackio, name)

    def init(self, **given: Any) -> Any:
        tracked_run = self._trackio.init(**given, embed=False)
        share_curves()
        return tracked_run


def begin_run(spec: TrackioSpec, project: str, name: str, config: dict[str, Any]) -> Any:
    """Begins a run outside of a training, in the folder where its Space is not reachable."""
    import trackio

    from apprentice.tasks.artifacts.hub_http import TIMEOUT, be_patient

    given: dict[str, Any] = {"project": project, "name": name, "config": config, "resume": "allow", "embed": False}
    given |= {"auto_log_cpu": False, "auto_log_gpu": False}
    if spec.space_id is not None:
        be_patient(TIMEOUT)  # as for a training
        try:
            return trackio.init(space_id=spec.space_id, private=spec.private, **given)
        except Exception as error:
            _warn(spec.space_id, project, type(error).__name__)
    tracked_run = trackio.init(**given)
    share_curves()
    return tracked_run


def check_space(spec: TrackioSpec, project: str) -> None:
    """Checks before a run that its Space is writable. Raises Stop; warns when the Hub is unavailable."""
    if spec.space_id is None:
        return
    from huggingface_hub import HfApi, get_token
    from huggingface_hub.errors import OfflineModeIsEnabled, RepositoryNotFoundError

    owner = spec.space_id.partition("/")[0]
    if get_token() is None:
        raise Stop(
            f"trackio.space_id names {spec.space_id}, and there is no token for the Hub.",
            f"Set HF_TOKEN to one with write permission for {owner}, or remove trackio.space_id: curves are then "
            "kept in the store, and `apprentice dashboard` shows them.",
        )
    try:
        _check_owner(ask(HfApi().whoami, owner, PATIENCE), owner)
        space = ask(lambda: HfApi().space_info(spec.space_id or ""), owner, PATIENCE)
    except RepositoryNotFoundError:
        return  # Trackio creates it
    except Exception as error:
        if not (is_away(error) or isinstance(error, OfflineModeIsEnabled)):
            raise
        _warn(spec.space_id, project, type(error).__name__)
        return
    if space.sdk == "static":
        raise Stop(
            f"The Space {spec.space_id} is frozen (static) and accepts no more logs.",
            "Choose another one in trackio.space_id.",
        )


def _check_owner(me: dict[str, Any], owner: str) -> None:
    """Raises Stop when the token has no write access; Trackio would prompt for another token and wait."""
    role = me.get("auth", {}).get("accessToken", {}).get("role")
    if role == "read" or owner not in (me["name"], *(each["name"] for each in me.get("orgs", []))):
        raise Stop(
            f"The token of {me['name']}{' is read-only and' if role == 'read' else ''} cannot write to a Space of "
            f"{owner}.",
            f"Give it write permission for {owner}, or choose another owner in trackio.space_id.",
        )


def _warn(space: str, project: str, why: str) -> None:
    announce.warn(
        f"The Space {space} is not reachable ({why}): the curves are kept in the store. "
        f"`apprentice dashboard` shows them; TRACKIO_DIR=…/{FOLDER} trackio sync --project {project} "
        f"--space-id {space} sends them."
    )
