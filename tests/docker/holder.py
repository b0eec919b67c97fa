"""A run that holds a container: `python -m tests.docker.holder IMAGE` prints its URL, and ends with standard input."""

import sys

from apprentice.envs.serving.container import container

if __name__ == "__main__":
    with container(sys.argv[1], sessions=2, patience=60) as url:
        print(url, flush=True)
        sys.stdin.read()
