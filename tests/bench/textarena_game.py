"""One of TextArena's games for one player, as TextArena makes it: what `make audit` plays of them.

In: a game's name in TextArena's registry, such as Mastermind-v0. Out: an environment in one file, with one tool for
every game. It is no environment of this project: it has no script, and shares TextArena's global random state.
The game is made, reset with the seed, and gets the player's text.
"""

import random
from pathlib import Path
from typing import Any

import nltk

from apprentice.envs.game import EnvironmentSettings, Game


class Settings(EnvironmentSettings):
    """Which game."""

    game: str


SECRETS = {
    "Bandit": lambda made: max(made.state.game_state["ground_truth"], key=made.state.game_state["ground_truth"].get),
    "GuessTheNumber": lambda made: str(made.game_number),
    "Mastermind": lambda made: " ".join(map(str, made.state.game_state["secret_code"])),
    "ThreeCardMonte": lambda made: str(made.ball_pos),
}
"""How the right answer is read, in the games that have one."""
HIDDEN = ("Bandit", "GuessTheNumber", "Mastermind")
"""Games whose question does not differ; it gets a name here, made of what is hidden."""
OF_A_SCORE = {"Set": 20.0}
"""What the highest reward is where it is not 1."""


class TextArenaGame(Game):
    """A game of TextArena's registry. Some reward a refused move with -1, others with 0: here it is 0."""

    Settings = Settings
    settings: Settings
    instructions = "You play a game by text. Call the tool `say` with your next move until the game is over."
    max_turns = 200

    def ask(self, seed: int) -> str:
        nltk.download = lambda *_, **__: False  # TextArena's imports try to download words
        import textarena

        name = self.settings.game
        self._made: Any = textarena.make(name)
        self._made.reset(num_players=1, seed=seed)
        kind = name.partition("-")[0]
        if kind in SECRETS:
            self.correct = SECRETS[kind](self._made)
        self._best = OF_A_SCORE.get(kind, 1.0)
        self._seen_text = ""
        if kind in HIDDEN:
            drawn = random.Random(str(self._made.state.game_state))
            return f"Game {''.join(drawn.choices('abcdefghijklmnopqrstuvwxyz', k=6))}.\n{self._new()}"
        return self._new()

    def say(self, move: str) -> str:
        """Make a move.

        Args:
            move: The move, in square brackets as the game says, or without them.

        Returns:
            What the game says.
        """
        move = str(move)  # a call may hold a null
        self.done, _ = self._made.step(move if "[" in move else f"[{move}]")
        said = self._new()
        if self.done:
            rewards, info = self._made.close()
            if not isinstance(rewards[0], int | float):
                raise TypeError(f"the game's reward is not a number: {rewards[0]!r}")
            self.reward = max(0.0, rewards[0] / self._best)
            said = f"{said}\n{info[0].get('reason', '')}".strip()
        return said or "OK."

    def _new(self) -> str:
        """Return what the game has said since the last time; its wrapper repeats all of it."""
        text = self._made.get_observation()[1]
        new = text.removeprefix(self._seen_text)
        self._seen_text = text
        return new.strip()


def made_here() -> tuple[list[str], dict[str, str]]:
    """Return the games for one player that can be made here, each in its usual variant, and why the others cannot."""
    nltk.download = lambda *_, **__: False
    import textarena
    from textarena.envs.registration import ENV_REGISTRY

    variants: dict[str, list[str]] = {}
    registered: dict[str, Any] = ENV_REGISTRY
    for name, spec in registered.items():
        variants.setdefault(str(spec.entry_point).partition(":")[0], []).append(name)
    made, failed = [], {}
    for module, names in variants.items():
        source = Path(textarena.__file__).parents[1] / f"{module.replace('.', '/')}.py"
        if not source.exists() or "SinglePlayerState" not in source.read_text():
            continue
        usual = f"{names[0].partition('-')[0]}-v0"
        name = usual if usual in names else names[0]
        try:
            textarena.make(name).reset(num_players=1, seed=0)
        except LookupError:
            failed[name] = "it needs word lists of NLTK, which are downloads"
        except (ImportError, SyntaxError, ValueError) as error:
            failed[name] = f"{type(error).__name__}: {str(error).strip().splitlines()[0]}"
        else:
            made.append(name)
    return made, failed
