"""Builds the folder of an environment that OpenEnv's tools validate, build as an image and publish as a Space.

In: the environment's game.py with the modules that it imports, or its `server/`; its README.md, and `packages.txt` if
it needs Debian packages; or an environment in one file, of which the server and the page are made.
Out: `OUT/NAME` with these files and the generated ones: server/app.py, openenv.yaml, pyproject.toml, Dockerfile,
models.py, client.py, uv.lock. The templates are in `space/`.
"""

import ast
import inspect
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from importlib.metadata import packages_distributions, requires
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from apprentice.envs import source
from apprentice.envs.catalog import described, environment_class, folder_of, game_of, known, module_of, part_of
from apprentice.envs.game import Game, takes_text
from apprentice.tasks.files.owners import modes_by_umask
from apprentice.tasks.reporting.errors import Stop

CAPACITY = 64
"""Default of MAX_CONCURRENT_ENVS."""
BROUGHT = {"openenv", "fastapi", "pydantic", "starlette", "uvicorn"}
"""Modules that openenv-core[core] installs."""
COMPILED = {"reasoning-gym"}
"""Distributions with a dependency that has no wheels: reasoning-gym needs pycosat, which is compiled from C."""
GENERATED = ("server/app.py", "openenv.yaml", "pyproject.toml", "models.py", "client.py", "Dockerfile")
TEMPLATES = Environment(
    loader=PackageLoader("apprentice.deployments", "space"), undefined=StrictUndefined, keep_trailing_newline=True
)


COPIED = {"game": "rules", "policy": "policy", "game_server": "game_server"}
"""Modules of `envs/` that an environment in one file needs beside it, with their names in a Space."""
OURS = re.compile(rf"from apprentice\.envs\.({'|'.join(COPIED)}) import")
FOREIGN = re.compile(r"apprentice\.[a-z_.]+")


def served() -> list[str]:
    return [name for name in known() if part_of(name, "server")]


def build(name: str, out: Path, uv: str | None) -> Path:
    """Write `out/name`, with uv.lock if `uv` is given, and return it. Raises Stop."""
    if name not in served():
        raise Stop(f"{name} has no server to build: {described(name)}.", f"Build one of {', '.join(served())}.")
    folder = out / name
    if folder.exists() and any(folder.iterdir()) and not (folder / "openenv.yaml").exists():
        raise Stop(f"{folder} holds other files.", "Empty it, or choose another folder with --out.")
    try:
        _fill(folder, Path(str(module_of(name).__file__)), values_of(name), uv)
        modes_by_umask(folder)  # its sources may be the author's alone
    except OSError as error:
        raise Stop(f"{folder} cannot be written: {error.strerror}.", "Choose another folder with --out.") from None
    return folder


def _fill(folder: Path, own: Path, values: dict[str, Any], uv: str | None) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    _write(folder, "openenv.yaml", values)  # first: marks even an unfinished folder as ours
    _write(folder, "pyproject.toml", values)
    files, game = server_files(values["name"]), game_of(values["name"])
    if game is not None:
        files["game.py"] = TEMPLATES.get_template("game.py.j2").render(values | {"of": game})
    elif (server := own.with_name("server")).is_dir():  # whatever other files it reads
        shutil.copytree(server, folder / "server", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "server").mkdir(exist_ok=True)
    for file, text in files.items():
        (folder / "server" / file).write_text(text)
    for file in ("__init__.py", "README.md"):
        if game is None:
            shutil.copy(own.with_name(file), folder / file)
        else:
            _write(folder, file, values)
    locked = uv is not None and lock(folder, uv)
    for file in GENERATED:
        _write(folder, file, values | {"locked": locked})


def server_files(name: str) -> dict[str, str]:
    """Return the Python files of an environment's server, by their names in `server/`.

    Raises Stop where an environment in one file imports more of this project than a Space has.
    """
    own, module = Path(str(module_of(name).__file__)), part_of(name, "server")
    if (game := game_of(name)) is not None:
        return _files_of(game)
    if module.endswith(".server.game"):
        files = own.with_name("server").rglob("*.py")
        return {file.relative_to(own.with_name("server")).as_posix(): file.read_text() for file in files}
    return {"__init__.py": "", **_with_neighbours(own.with_name("game.py"))}


def _files_of(game: type[Game]) -> dict[str, str]:
    """Return the game's file and the modules that it needs beside it."""
    here, own = Path(source.__file__).parent, Path(inspect.getfile(game))
    texts = {f"{into}.py": (here / f"{module}.py").read_text() for module, into in COPIED.items()}
    texts |= {"__init__.py": "", own.name: own.read_text()}
    texts = {file: OURS.sub(lambda found: f"from .{COPIED[found[1]]} import", text) for file, text in texts.items()}
    if "apprentice" in imported([texts[own.name]]):
        raise Stop(
            f"{own} imports more of apprentice than a Space has.",
            f"Import only apprentice.envs.game and apprentice.envs.policy in it, not: "
            f"{', '.join(FOREIGN.findall(texts[own.name]))}.",
        )
    return texts


def _with_neighbours(file: Path) -> dict[str, str]:
    """Return a module and all that it imports from beside it, by file name."""
    texts: dict[str, str] = {}
    waiting = [file]
    while waiting:
        file = waiting.pop()
        texts[file.name] = file.read_text()
        near = [
            each for each in ast.walk(ast.parse(texts[file.name])) if isinstance(each, ast.ImportFrom) and each.level
        ]
        names = {f"{each.module or one.name}.py" for each in near for one in each.names}
        waiting += [file.with_name(each) for each in names - texts.keys()]
    return texts


def values_of(name: str) -> dict[str, Any]:
    folder, one, game_file = folder_of(name), game_of(name), server_files(name).get("game.py", "")
    environment, action, observation = (f"{one.__name__}Server", "Move", "Seen") if one else classes_in(game_file)
    debian, needed = folder / "packages.txt", requirements(name)
    return {
        "environment": environment,
        "action": action,
        "observation": observation,
        "name": name,
        "about": inspect.getdoc(inspect.getmodule(one)) if one else "",
        "takes_text": one is not None and takes_text(one),
        "module": f"apprentice_env_{name}",
        "description": json.dumps(described(name), ensure_ascii=False),
        "client": (one.__name__ if one else observation.removesuffix("Observation")) + "Env",
        "capacity": CAPACITY,
        "debian": " ".join(debian.read_text().split()) if debian.exists() else "",
        "requirements": needed,
        "compiled": not COMPILED.isdisjoint(map(_canonical, needed)),
    }


def classes_in(text: str) -> tuple[str, str, str]:
    """Return the names X, Action and Observation in `class X(Environment[Action, Observation, State])`.

    Does not import the module, so its optional dependencies need not be installed.
    """
    for node in ast.parse(text).body:
        for base in node.bases if isinstance(node, ast.ClassDef) else ():
            if isinstance(base, ast.Subscript) and ast.unparse(base.value) == "Environment":
                action, observation, _ = ast.unparse(base.slice).strip("()").split(", ")
                return node.name, action, observation  # type: ignore[union-attr]
    raise ValueError("the server has no class that inherits Environment[Action, Observation, State]")


def requirements(name: str) -> list[str]:
    """Return the distributions that the server imports, with this project's version bounds."""
    declared = [each.partition(";") for each in requires("openenv-apprentice") or []]
    bounds = {_canonical(stated): stated.strip() for stated, _, _ in declared}
    extra, brought = environment_class(name).extra
    of_extra = [stated for stated, _, marker in declared if re.search(rf"extra == .{extra}\W", marker)] if extra else []
    known = {**packages_distributions(), brought.partition(".")[0]: of_extra}
    needed = {"openenv-core[core]>=0.3"}
    for module in imported(server_files(name).values()) - BROUGHT - set(sys.stdlib_module_names):
        distribution = _canonical(known.get(module, [module])[0])
        needed.add(bounds.get(distribution, distribution))
    return sorted(needed)


def imported(texts: Iterable[str]) -> set[str]:
    """Return the top-level modules that Python sources import absolutely."""
    names: set[str] = set()
    for node in itertools.chain.from_iterable(ast.walk(ast.parse(text)) for text in texts):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names.add(node.module.partition(".")[0])
    return names


def find_uv() -> str | None:
    return shutil.which("uv", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]))


def lock(folder: Path, uv: str) -> bool:
    """Write uv.lock from uv's default index, whatever this machine's uv and pip are set to; return False on failure."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("UV_", "PIP_"))}
    command = [uv, "lock", "--no-config", "--python", sys.executable]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    if done.returncode:
        print(f"uv could not lock {folder.name}: {' '.join(done.stderr.split())[-300:]}", file=sys.stderr)
    return done.returncode == 0


def _write(folder: Path, file: str, values: dict[str, Any]) -> None:
    (folder / file).write_text(TEMPLATES.get_template(f"{Path(file).name}.j2").render(values))


def _canonical(requirement: str) -> str:
    return re.sub(r"[-_.]+", "-", re.split(r"[\s\[<>=!~;]", requirement.strip(), maxsplit=1)[0]).lower()
