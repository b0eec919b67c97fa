"""`apprentice env init NAME`: the folder of an environment that is a package of its own, outside this project.

In: a name. Out: `NAME/` with the package, a test and a recipe; `pip install -e NAME` makes it known to `apprentice`.
The templates are in `environment/`.
"""

import keyword
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

from apprentice.envs.catalog import known
from apprentice.tasks.reporting.errors import Stop

TEMPLATE_OF = {
    "pyproject.toml": "pyproject.toml",
    "recipe.yaml": "recipe.yaml",
    "tests/test_{name}.py": "test.py",
    "{name}/__init__.py": "__init__.py",
    "{name}/README.md": "README.md",
    "{name}/env.py": "env.py",
    "{name}/policy.py": "policy.py",
    "{name}/server/__init__.py": "",
    "{name}/server/game.py": "game.py",
}
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
            path.write_text(TEMPLATES.get_template(f"{template}.j2").render(values) if template else "")
    except OSError as error:
        raise Stop(f"{folder} cannot be written: {error.strerror}.", "Choose another folder with --out.") from None
    return folder
