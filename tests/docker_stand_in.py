#!/usr/bin/env python3
"""A stand-in for the program `docker`: a container is a process of this machine that serves a real environment.

In: a folder in the variable DOCKER_STAND_IN, where containers and all commands are written down. An image's name is
what its container does: `echo:latest` serves echo, `broken` ends with a sentence, `deaf` never answers, others are not
known.
Why: quick tests need no engine; `make test-docker` has a real one.
"""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

FOLDER = Path(os.environ.get("DOCKER_STAND_IN", "."))
SERVES = """
import os, sys, uvicorn
from apprentice.envs.catalog import server_app
app = server_app(sys.argv[2], int(os.environ["MAX_CONCURRENT_ENVS"]))
uvicorn.run(app, fd=int(sys.argv[1]), log_level="critical")
"""
IMAGES = {
    "echo:latest": SERVES,
    "broken": "raise SystemExit('no module named game')",
    "deaf": "import time; time.sleep(600)",
}
NO_VALUE = ("--detach",)


def run(arguments: list[str]) -> None:
    image = arguments[-1]
    valued = [each for each in arguments[:-1] if each not in NO_VALUE]
    options = dict(zip(valued[::2], valued[1::2], strict=True))
    if image not in IMAGES:
        sys.exit(
            f"Unable to find image '{image}' locally\ndocker: pull access denied for {image}\nSee 'docker run --help'."
        )
    host, _, inside = options["--publish"].split(":")
    assert inside == "8000"
    name, _, value = options["--env"].partition("=")
    with (
        (FOLDER / f"{options['--name']}.log").open("w") as log,
        socket.create_server((host, 0)) as listener,
    ):
        process = subprocess.Popen(
            [sys.executable, "-c", IMAGES[image], str(listener.fileno()), image.split(":")[0]],
            env=os.environ | {name: value},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=[listener.fileno()],
            start_new_session=True,
        )
        port = listener.getsockname()[1]
    kept = {"pid": process.pid, "address": f"{host}:{port}", "label": options["--label"].partition("=")[2]}
    (FOLDER / f"{options['--name']}.json").write_text(json.dumps(kept))
    print(options["--name"])


def container(name: str) -> dict[str, str | int]:
    try:
        return json.loads((FOLDER / f"{name}.json").read_text())
    except FileNotFoundError:
        sys.exit(f"Error: No such container: {name}")


def runs(name: str) -> bool:
    stat = Path(f"/proc/{container(name)['pid']}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


def main() -> None:
    command, *rest = sys.argv[1:]
    with (FOLDER / "commands.txt").open("a") as said:
        said.write(" ".join(sys.argv[1:]) + "\n")
    if command == "ps":
        for name in (file.stem for file in FOLDER.glob("*.json")):
            print(name, container(name)["label"])
    elif command == "run":
        run(rest)
    elif command == "port":
        print(container(rest[0])["address"])
    elif command == "inspect":
        print(str(runs(rest[-1])).lower())
    elif command == "logs":
        print((FOLDER / f"{rest[-1]}.log").read_text())
    elif command == "rm":
        if runs(rest[-1]):
            os.kill(int(container(rest[-1])["pid"]), signal.SIGKILL)
        (FOLDER / f"{rest[-1]}.json").unlink()
    else:
        sys.exit(f"docker: unknown command {command}")


if __name__ == "__main__":
    main()
