"""`apprentice env init NAME`: an environment in one file, with a recipe and a test."""

import keyword
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

from apprentice.envs.catalog import known
from apprentice.tasks.reporting.errors import Stop

TEMPLATE_OF = {"{name}.py": "game.py", "recipe.yaml": "recipe.yaml", "test_{name}.py": "test.py"}
"""The template of each file."""
TEMPLATES = Environment(
    loader=PackageLoader("apprentice.deployments", "environment"),
    undefined=StrictUndefined,
    keep_trailing_newline=True,
)


def init_environment(name: str, out: Path) -> Path:
    """Write `out/name` and return it. Raises Stop for a name that cannot be one, or a folder that holds files."""
    if not name.isidentifier() or not name.islower() or keyword.iskeyword(name):
        raise Stop(f"{name!r} cannot be an environment's name.", "Use small letters, digits and _, such as my_env.")
    if name in known():
        raise Stop(f"There is an environment of the name {name}.", "Choose another name.")
    folder = out / name
    if folder.exists() and any(folder.iterdir()):
        raise Stop(f"{folder} holds files.", "Empty it, or choose another folder with --out.")
    values = {"name": name, "title": "".join(word.capitalize() for word in name.split("_"))}
    try:
        for file, template in TEMPLATE_OF.items():
            path = folder / file.format(name=name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(TEMPLATES.get_template(f"{template}.j2").render(values))
    except OSError as error:
        raise Stop(f"{folder} cannot be written: {error.strerror}.", "Choose another folder with --out.") from None
    return folder
