"""Makes every environment's folder one that OpenEnv's own tools validate, build and publish as it is.

In: `envs/NAME/server/` with its `app.py`, and `envs/NAME/packages.txt` where it needs packages of Debian.
Out: openenv.yaml, pyproject.toml, uv.lock, Dockerfile, models.py and client.py beside it.
Why: all of it follows from what the server imports; written by hand it would be wrong after the next change.

Run: `make spaces`, or `python -m apprentice.deployments.spaces [--uv build/uv/bin/uv] [NAME …]`. Locking takes PyPI.
"""

import argparse
import ast
import json
import os
import re
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any, NamedTuple

import yaml

import apprentice.envs.catalog
from apprentice.envs.catalog import CATALOGUE

ENVS = Path(apprentice.envs.catalog.__file__).resolve().parent
BROUGHT = {"openenv", "fastapi", "pydantic", "starlette", "uvicorn"}
"""Modules that openenv-core[core] brings along."""
UV = "uv>=0.13,<1"

DOCKERFILE = """\
# Written by `make spaces`. A Space builds it; so does: docker build --tag {name} . && docker run -p 8000:8000 {name}
FROM python:3.11-slim
{debian}RUN pip install --no-cache-dir '{uv}' && useradd --create-home --uid 1000 user
WORKDIR /app
COPY pyproject.toml uv.lock ./
RUN uv sync --frozen --no-dev --no-install-project
COPY . .

# MAX_CONCURRENT_ENVS: episodes at once. PYTHONHASHSEED: what is drawn from a set is the same on every server.
ENV PATH=/app/.venv/bin:$PATH \\
    PYTHONUNBUFFERED=1 \\
    PYTHONHASHSEED=0 \\
    MAX_CONCURRENT_ENVS={capacity}
USER user
EXPOSE 8000
HEALTHCHECK --interval=30s --timeout=5s --start-period=30s \\
    CMD python -c "import urllib.request as r; r.urlopen('http://127.0.0.1:8000/health', timeout=4)"
CMD ["uvicorn", "server.app:app", "--host", "0.0.0.0", "--port", "8000"]
"""

DEBIAN = """\
RUN apt-get update && apt-get install --yes --no-install-recommends {packages} && rm -rf /var/lib/apt/lists/*
"""

PYPROJECT = """\
# Written by `make spaces` from what server/ imports.
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "apprentice-env-{dashed}"
version = "0.1.0"
description = {description}
readme = "README.md"
requires-python = ">=3.11"
dependencies = [
{dependencies}
]

[project.scripts]
server = "{module}.server.app:main"

# The folder itself is the package, under a name that no library has.
[tool.setuptools]
packages = ["{module}", "{module}.server"]
package-dir = {{ "{module}" = ".", "{module}.server" = "server" }}

[tool.setuptools.package-data]
"*" = ["*"]

[tool.uv]
environments = ["sys_platform == 'linux' and platform_machine == 'x86_64'"]
"""

MODELS = '''\
"""What is sent and what comes back. Written by `make spaces`."""

from .server.{source} import {action}, {observation}

__all__ = ["{action}", "{observation}"]
'''

CLIENT = '''\
"""A typed client of the server, for those who have this folder and not the rest. Written by `make spaces`."""

from typing import Any

from openenv.core.client_types import StepResult
from openenv.core.env_client import EnvClient
from openenv.core.env_server.types import State

from .models import {action}, {observation}


class {client}(EnvClient[{action}, {observation}, State]):
    """An episode: `reset` with what names the question, then `step` until it is done."""

    def _step_payload(self, action: {action}) -> dict[str, Any]:
        return action.model_dump(mode="json", exclude={{"metadata"}})

    def _parse_result(self, payload: dict[str, Any]) -> StepResult[{observation}]:
        rest = {{"reward": payload.get("reward"), "done": payload.get("done", False)}}
        observation = {observation}.model_validate(payload["observation"] | rest)
        return StepResult(observation=observation, **rest)

    def _parse_state(self, payload: dict[str, Any]) -> State:
        return State.model_validate(payload)
'''


class App(NamedTuple):
    """What `server/app.py` says."""

    action: str
    observation: str
    source: str  # the module of server/ that defines them
    capacity: str


def served() -> list[str]:
    """The environments that have a server of their own."""
    return [name for name in CATALOGUE if (ENVS / name / "server" / "app.py").exists()]


def files_of(name: str) -> dict[str, str]:
    """The files that make an environment's folder deployable, but for the lock."""
    folder = ENVS / name
    app, module, debian = app_of(folder), f"apprentice_env_{name}", folder / "packages.txt"
    packages = " ".join(debian.read_text().split()) if debian.exists() else ""
    names = app._asdict() | {"client": app.action.removesuffix("Action") + "Env", "module": module, "name": name}
    manifest: dict[str, Any] = {"spec_version": 1, "name": name, "type": "space", "runtime": "fastapi"}
    manifest |= {"app": "server.app:app", "port": 8000, "variables": {"MAX_CONCURRENT_ENVS": app.capacity}}
    return {
        "openenv.yaml": "# Written by `make spaces`.\n" + yaml.safe_dump(manifest, sort_keys=False),
        "pyproject.toml": PYPROJECT.format(
            **names,
            dashed=name.replace("_", "-"),
            description=json.dumps(CATALOGUE[name], ensure_ascii=False),
            dependencies="\n".join(f'    "{each}",' for each in requirements(folder)),
        ),
        "Dockerfile": DOCKERFILE.format(**names, uv=UV, debian=DEBIAN.format(packages=packages) if packages else ""),
        "models.py": MODELS.format(**names),
        "client.py": CLIENT.format(**names),
    }


def app_of(folder: Path) -> App:
    """Read, not imported: what an extra brings need not be installed."""
    text = (folder / "server" / "app.py").read_text()
    tree = ast.parse(text)
    call = next(node for node in ast.walk(tree) if isinstance(node, ast.Call) and _named(node.func) == "create_app")
    action, observation = (_named(each) for each in call.args[1:3])
    source = next(
        node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.level == 1 and action in {alias.name for alias in node.names}
    )
    capacity = re.search(r'"MAX_CONCURRENT_ENVS", "(\d+)"', text)
    if source is None or capacity is None:
        raise ValueError(f"{folder}/server/app.py is not shaped as echo's is")
    return App(action, observation, source, capacity[1])


def requirements(folder: Path) -> list[str]:
    """What the server imports, as distributions, with the bounds of this project's own pyproject.toml."""
    project = tomllib.loads((ENVS.parent / "pyproject.toml").read_text())["project"]
    stated = [
        *project["dependencies"],
        *(each for extra in project["optional-dependencies"].values() for each in extra),
    ]
    bounds = {_canonical(each): each for each in stated}
    known = packages_distributions()
    needed = {"openenv-core[core]>=0.3"}
    for module in imported(folder / "server") - BROUGHT - set(sys.stdlib_module_names):
        distribution = _canonical(known.get(module, [module])[0])
        needed.add(bounds.get(distribution, distribution))
    return sorted(needed)


def imported(server: Path) -> set[str]:
    """The top-level modules that are imported absolutely, anywhere in a folder."""
    names: set[str] = set()
    for file in server.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                names |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                names.add(node.module.partition(".")[0])
    return names


def lock(folder: Path, uv: str) -> None:
    """Writes uv.lock from PyPI alone, whatever this machine's settings are."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("UV_", "PIP_"))}
    command = [uv, "lock", "--no-config", "--default-index", "https://pypi.org/simple", "--python", sys.executable]
    subprocess.run(command, cwd=folder, env=environment, check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--uv", help="the uv that locks; no lock is written without it")
    asked = parser.parse_args()
    for name in asked.names or served():
        for file, text in files_of(name).items():
            (ENVS / name / file).write_text(text)
        if asked.uv:
            lock(ENVS / name, os.path.abspath(asked.uv))
        print(f"envs/{name}")


def _named(node: ast.AST) -> str:
    return node.id if isinstance(node, ast.Name) else ""


def _canonical(requirement: str) -> str:
    return re.sub(r"[-_.]+", "-", re.split(r"[\s\[<>=!~;]", requirement.strip(), maxsplit=1)[0]).lower()


if __name__ == "__main__":
    main()
