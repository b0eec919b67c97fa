"""Serves an environment of the catalogue on this machine.

Run: `python -m apprentice.envs.serving.serve echo --max-sessions 64` (prints its URL; exits when stdin closes).
"""

import argparse

from apprentice.envs.catalog import server_app
from apprentice.envs.serving.process import serve


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name")
    parser.add_argument("--max-sessions", type=int, default=64)
    arguments = parser.parse_args()
    serve(server_app(arguments.name, arguments.max_sessions))


if __name__ == "__main__":
    main()
