"""Old names of an environment's methods, for environments and scripts that others have written; to be removed after the
next minor version.

In: a subclass of `ToolEnvironment` that overrides or calls a method by its old name, or a script that uses the player
from `EnvironmentSpec.make` as the environment, which `make` returned before. Out: the same behaviour, and one line in
the log with the new name.
"""

import logging
from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

C = TypeVar("C", bound=type)

HOOKS = {
    "_scores": "scores",
    "_traits": "slices",
    "_completed": "completed",
    "_version_under": "version_under",
    "_code_under": "code_under",
}
"""What authors override. A class that has one of the names gets the other, so that `super()` finds both."""
OF_SESSION = {"_start": "reset", "_act": "step", "_guarded": "guarded"}
"""What authors call: methods of `self.session` now."""
OF_PLAYER = {
    "_ask": "ask",
    "_renew": "renew",
    "_lose": "lose",
    "_give_up": "give_up",
    "_check_reward": "check_reward",
    "_wait_for_server": "wait_for_server",
    "_close": "close",
}
"""What only those who play an environment called: methods of its `Player` now."""
PARTS = {"_part": "Mixture.part", "_parts": "Mixture.parts"}
"""What only mixtures override: methods of `Mixture` now."""


@cache
def _log(name: str, old: str, new: str) -> None:
    logging.getLogger(__name__).warning("%s: %s is called %s now; the next minor version drops it", name, old, new)


def _name(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


class OldNames:
    """Gives an environment the methods under their old names."""

    def __init_subclass__(cls, **named: Any):
        super().__init_subclass__(**named)
        for old, new in HOOKS.items():
            if old in vars(cls):
                _log(_name(cls), old, new)
                setattr(cls, new, vars(cls)[old])
            elif new in vars(cls):
                setattr(cls, old, vars(cls)[new])
        for old, new in {"_under": "declared_tools", **PARTS}.items():
            if old in vars(cls):
                _log(_name(cls), old, new)

    @classmethod
    def _under(cls, settings: Any) -> Any:
        return cls

    def _part(self, seed: int) -> Any:
        return self

    def _parts(self) -> list[Any]:
        return [self]


def _in_session(old: str, new: str) -> Callable[..., Any]:
    def method(self: Any, *given: Any, **named: Any) -> Any:
        _log(_name(type(self)), old, f"session.{new}")
        if old == "_start" and given:  # the seed, which had no name
            given, named = (), {"seed": given[0], **named}
        return getattr(self.session, new)(*given, **named)

    return method


for _old, _new in OF_SESSION.items():
    setattr(OldNames, _old, _in_session(_old, _new))


def give_old_names(player: C) -> C:
    """Decorate the class of players: environments get its methods under their old names."""

    def method_of(old: str, new: str) -> Callable[..., Any]:
        def method(self: Any, *given: Any, **named: Any) -> Any:
            _log(_name(type(self)), old, f"Player.{new}")
            return getattr(player, new)(player(self), *given, **named)  # the class's own: an override calls this one

        return method

    for old, new in OF_PLAYER.items():
        setattr(OldNames, old, method_of(old, new))
    return player


class OldPlayer:
    """Gives a player what the environment has."""

    def __getattr__(self, name: str) -> Any:
        own: Any = self
        if name in OF_PLAYER or name in PARTS or name in ("_scores", "_traits"):
            new = (OF_PLAYER | PARTS | HOOKS)[name].rpartition(".")[2]
            _log(_name(type(self)), name, new)
            return getattr(own, new)
        environment = vars(self).get("environment")
        if hasattr(type(self), name) or not hasattr(environment, name):
            return object.__getattribute__(self, name)  # raises the error that led here
        _log(_name(type(self)), name, "ask" if name == "reset" else f"environment.{name}")
        if name == "reset":
            return lambda *, seed, **row: own.part(seed).environment.reset(seed=seed, **row)
        return getattr(environment, name)


def class_of(environment: Any, settings: Any) -> Any:
    """Return the class that plays under these settings: the class itself, but where `_under` is overridden."""
    return environment._under(settings)


def follow_overrides(player: Any) -> None:
    """Have a player do what its environment's class overrides under an old name."""
    environment: Any = player.environment
    for old, new in OF_PLAYER.items():
        if getattr(type(environment), old) is not getattr(OldNames, old):
            setattr(player, new, getattr(environment, old))
    if type(environment)._parts is not OldNames._parts:
        made = {each: each if hasattr(each, "environment") else type(player)(each) for each in environment._parts()}
        for each, part in made.items():
            part.label = getattr(each, "label", "")
        player.parts = lambda: list(made.values())
        player.part = lambda seed: made[environment._part(seed)]
