"""A team's chat, as far as Prefect's webhook sees one.

In: nothing. Out: its address, and what it was told; a notification block with that address.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from prefect.client.schemas.actions import BlockDocumentCreate

BLOCK = "custom-webhook/team"
"""As `apprentice setup --notify` takes it."""


@contextmanager
def receiver() -> Iterator[tuple[str, list[str]]]:
    """Yields its address, and the list of what it is told."""
    messages: list[str] = []

    class Chat(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            messages.append(self.rfile.read(int(self.headers["content-length"])).decode())
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Chat)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", messages
    finally:
        server.shutdown()


def save_block(client: Any, address: str) -> bool:
    """A notification block as a person makes one in the interface; False while the server does not know its blocks."""
    kind, name = BLOCK.split("/")
    kind = client.read_block_type_by_slug(kind)
    schema = client.get_most_recent_block_schema_for_block_type(kind.id)
    if schema is None:
        return False
    data = {"name": name, "url": address, "json_data": {"text": "{{subject}}: {{body}}"}}
    client.create_block_document(
        BlockDocumentCreate(name=name, data=data, block_type_id=kind.id, block_schema_id=schema.id)
    )
    return True
