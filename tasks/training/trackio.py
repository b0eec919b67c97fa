"""Logs a training's metrics with Trackio, in the store's folder or on a Space of the Hub.

In: the recipe's section `trackio`, a trainer. Out: TRL's arguments, a callback that works without the Space, and a run
for what no training logs.
Why: Trackio looks up its Space before the first step, and an error there would end the training. Errors after that it
handles itself: it keeps the metrics in the folder and sends them with the next training.
"""

from typing import TYPE_CHECKING, Any

from apprentice.tasks.artifacts.hub_client import ask, is_away
from apprentice.tasks.engine.run import FOLDER
from apprentice.tasks.reporting import announce
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.settings.stages import TrackioSpec

if TYPE_CHECKING:
    from apprentice.tasks.engine.run import RunContext

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
    """Replaces transformers' callback by one that falls back to the folder when the Space is unreachable at the start
    of a training, and that logs by training step, where transformers' logs by number of logs."""
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
        return self._trackio.init(**given, embed=False)


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
    return trackio.init(**given)


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
