"""Where Trackio keeps a training's metrics as they grow: in the store's folder, or on a Space of the Hub.

In: the recipe's section `trackio`, a trainer. Out: TRL's arguments, and a callback that goes on without the Space.
Why: Trackio asks the Hub about its Space before the first step and lets the error through: a training would die of its
curves. What it cannot send after that it keeps in the folder by itself, and sends with the next training.
"""

from typing import TYPE_CHECKING, Any

from apprentice.tasks.artifacts.hub_client import TIMEOUT, ask, is_away
from apprentice.tasks.reporting import announce
from apprentice.tasks.reporting.curves import FOLDER
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.settings.stages import TrackioSpec

if TYPE_CHECKING:
    from apprentice.tasks.engine.run import RunContext

PATIENCE = 20.0
"""Seconds that the Hub may take to answer, at a run's beginning."""


def trackio_arguments(run: "RunContext") -> dict[str, Any]:
    """What TrainingArguments say of Trackio."""
    return {
        "project": run.store.project,
        "trackio_space_id": run.trackio.space_id,
        "trackio_static_space_id": False,  # else each training leaves one more Space, with a copy
        "hub_private_repo": run.trackio.private,
    }


def log_by_step(trainer: Any) -> None:
    """Puts in place of transformers' callback one that logs to the folder where the Space cannot be reached when a
    training begins, and that counts the training's steps, where transformers' counts the logs."""
    from huggingface_hub import get_session
    from transformers.integrations import TrackioCallback
    from transformers.integrations.integration_utils import rewrite_logs

    class ByStep(TrackioCallback):
        def on_log(
            self, args: Any, state: Any, control: Any, model: Any = None, logs: Any = None, **given: Any
        ) -> None:
            if not self._initialized:
                self.setup(args, state, model)
            if state.is_world_process_zero and "train_runtime" not in logs:  # the summary at the end is no step
                self._trackio.log(rewrite_logs(logs), step=state.global_step)

        def setup(self, args: Any, state: Any, model: Any, **given: Any) -> None:
            if args.trackio_space_id is None:
                super().setup(args, state, model, **given)
                return
            get_session().timeout = TIMEOUT  # the client's own is none: a Hub that hangs would hold a device for ever
            try:
                super().setup(args, state, model, **given)
            except Exception as error:  # of whatever kind: curves are no reason to stop a training
                _warn(args.trackio_space_id, args.project, type(error).__name__)
                args.trackio_space_id = None
                super().setup(args, state, model, **given)

    if trainer.pop_callback(TrackioCallback) is not None:
        trainer.add_callback(ByStep())


def check_space(spec: TrackioSpec, project: str) -> None:
    """Looks before a run begins whether its Space can be written to. Raises Stop; a Hub that is away is a warning."""
    if spec.space_id is None:
        return
    from huggingface_hub import HfApi, get_token
    from huggingface_hub.errors import OfflineModeIsEnabled, RepositoryNotFoundError

    owner = spec.space_id.partition("/")[0]
    if get_token() is None:
        raise Stop(
            f"trackio.space_id names {spec.space_id}, and there is no token for the Hub.",
            f"Set HF_TOKEN to one with write permission for {owner}, or leave trackio.space_id out: curves are then "
            "kept in the store, and `apprentice dashboard` shows them.",
        )
    try:
        _check_owner(ask(HfApi().whoami, owner, PATIENCE), owner)
        space = ask(lambda: HfApi().space_info(spec.space_id or ""), owner, PATIENCE)
    except RepositoryNotFoundError:
        return  # Trackio makes it
    except Exception as error:
        if not (is_away(error) or isinstance(error, OfflineModeIsEnabled)):
            raise
        _warn(spec.space_id, project, type(error).__name__)
        return
    if space.sdk == "static":
        raise Stop(
            f"The Space {spec.space_id} is frozen (static): nothing can be logged to it any more.",
            "Name another one in trackio.space_id.",
        )


def _check_owner(me: dict[str, Any], owner: str) -> None:
    """Raises Stop where the token cannot write there: Trackio would ask for another one on the terminal, and wait."""
    role = me.get("auth", {}).get("accessToken", {}).get("role")
    if role == "read" or owner not in (me["name"], *(each["name"] for each in me.get("orgs", []))):
        raise Stop(
            f"The token is {me['name']}'s{', for reading only' if role == 'read' else ''}: "
            f"it may not write to a Space of {owner}.",
            f"Give it write permission for {owner}, or name another owner in trackio.space_id.",
        )


def _warn(space: str, project: str, why: str) -> None:
    announce.warn(
        f"The Space {space} cannot be logged to ({why}): the curves are kept in the store. "
        f"`apprentice dashboard` shows them; TRACKIO_DIR=…/{FOLDER} trackio sync --project {project} "
        f"--space-id {space} sends them."
    )
