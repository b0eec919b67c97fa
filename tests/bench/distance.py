"""A server at a distance: a TCP proxy on 127.0.0.1 that holds every byte back for so long, each way.

Run: `python -m tests.bench.distance --to 127.0.0.1:8000 --one-way-ms 50` (prints its URL; ends with standard input).
"""

import argparse
import asyncio
import os
import sys
import threading
from contextlib import suppress

from apprentice.envs.serving.process import SERVES_AT


async def carry(source: asyncio.StreamReader, sink: asyncio.StreamWriter, seconds: float) -> None:
    """Passes on what comes, in order, each piece as late as it would be over a long line."""
    loop = asyncio.get_running_loop()
    arrivals: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

    async def deliver() -> None:
        while True:
            due, data = await arrivals.get()
            await asyncio.sleep(max(0.0, due - loop.time()))
            sink.write(data)
            if not data:
                sink.close()
                return

    delivering = asyncio.create_task(deliver())
    with suppress(ConnectionError):
        while data := await source.read(65536):
            arrivals.put_nowait((loop.time() + seconds, data))
    arrivals.put_nowait((loop.time() + seconds, b""))
    with suppress(ConnectionError):
        await delivering


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--to", required=True)
    parser.add_argument("--one-way-ms", type=float, required=True)
    given = parser.parse_args()
    host, port = given.to.rsplit(":", 1)
    seconds = given.one_way_ms / 1000

    async def connected(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(host, int(port))
        await asyncio.gather(carry(source, back, seconds), carry(there, sink, seconds))

    threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
    server = await asyncio.start_server(connected, "127.0.0.1", 0, backlog=1024)
    print(f"{SERVES_AT}http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
