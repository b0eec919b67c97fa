"""The engine that answers now: started, watched, replaced by the next champion's, started again where it ends.

In: a `Target`. Out: the `Backend` for the next request. A promotion loads the new model beside the old one, switches,
and ends the old engine after its last request; so no request is dropped, and both are in memory meanwhile.
"""

import asyncio
from dataclasses import dataclass

from apprentice.flows.serving.target import Target
from apprentice.tasks.artifacts.hub_client import is_away
from apprentice.tasks.artifacts.types import Checkpoint
from apprentice.tasks.reporting import announce
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.serving.engine import Engine, EngineFailed

WATCH_S = 0.25
"""Seconds between two looks at the engine's process."""
MOST_PAUSE_S = 30.0
"""Longest pause before an engine that ends at once is started again."""
DRAIN_S = 600.0
"""Longest that an old engine is kept for its last request."""


@dataclass(eq=False)
class Backend:
    """An engine with a model.

    Attributes:
        requests: How many it answers at the moment.
    """

    engine: Engine
    model: Checkpoint
    requests: int = 0


class Backends:
    """The engine in force.

    Attributes:
        current: It; None while there is none to ask.
        model: The model that is served, or that is being loaded.
        restarts: How often an engine that ended was started again.
        ended: How the last one ended that did so by itself; empty if none has.
    """

    def __init__(self, target: Target):
        self.target = target
        self.current: Backend | None = None
        self.model = target.model()
        self.restarts = 0
        self.ended = ""
        self._refused = ""
        self._draining: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Start the first engine, and wait until it answers. Raises Stop."""
        try:
            self.current = self._loaded(self.model)
        except EngineFailed as failed:
            raise Stop(
                f"{self.target.engine} does not serve {self.model.key}: {failed}.",
                "Choose another engine with --engine, or fewer tokens with --context.",
            ) from failed

    async def stop(self) -> None:
        """Ends every engine."""
        for task in self._draining:
            task.cancel()
        await asyncio.gather(*self._draining, return_exceptions=True)
        if self.current is not None:
            await asyncio.to_thread(self.current.engine.stop)

    async def watch(self) -> None:
        """Restarts and follows, until it is cancelled."""
        waited = 0.0
        while True:
            await asyncio.sleep(WATCH_S)
            waited += WATCH_S
            if self.current is None or not self.current.engine.is_alive:
                await self._restart()
            elif waited >= self.target.look_s and self.target.pinned is None:
                waited = 0.0
                await self._follow()

    def _loaded(self, model: Checkpoint) -> Backend:
        """Return a backend that answers. Raises Stop, EngineFailed."""
        engine = self.target.start(model)
        try:
            engine.wait_ready()
        except BaseException:
            engine.stop()
            raise
        return Backend(engine, model)

    async def _restart(self) -> None:
        """Starts the engine again, after a pause where it has ended before."""
        gone, self.current = self.current, None
        if gone is not None:
            self.ended = gone.engine.end()
            announce.warn(f"The engine ended: {self.ended}. It is started again.")
            await asyncio.to_thread(gone.engine.stop)
        pause = 0.5
        while self.current is None:
            self.restarts += 1
            try:
                self.current = await asyncio.to_thread(self._loaded, self.model)
            except (EngineFailed, Stop) as failed:
                self.ended = str(failed)
                announce.warn(f"The engine does not start: {failed}. Trying again in {pause:g} s.")
                await asyncio.sleep(pause)
                pause = min(2 * pause, MOST_PAUSE_S)

    async def _follow(self) -> None:
        """Loads another champion, if the tag has moved. Of one that cannot be loaded it says so once."""
        try:
            wanted = await asyncio.to_thread(self.target.model)
        except Stop as stop:
            if (said := f"The champion's tag is not followed: {stop.cause}") != self.ended:  # say it once
                self.ended = said
                announce.warn(said)
            return
        except Exception as error:
            if not is_away(error):
                raise
            return
        if wanted.revision == self.model.revision or wanted.revision == self._refused:
            return
        try:
            loaded = await asyncio.to_thread(self._loaded, wanted)
        except (EngineFailed, Stop) as failed:
            self._refused = wanted.revision
            announce.warn(f"The new champion {wanted.key} cannot be served, and {self.model.key} stays: {failed}")
            return
        old, self.current, self.model, self._refused = self.current, loaded, wanted, ""
        announce.say(f"Serving {wanted.key} (revision {wanted.revision[:12]}) from now on.")
        if old is not None:
            task = asyncio.create_task(self._drain(old))
            self._draining.add(task)
            task.add_done_callback(self._draining.discard)

    async def _drain(self, old: Backend) -> None:
        """Ends an engine after its last request."""
        loop = asyncio.get_running_loop()
        until = loop.time() + DRAIN_S
        try:
            while old.requests and loop.time() < until:
                await asyncio.sleep(WATCH_S)
        finally:
            old.engine.stop()
