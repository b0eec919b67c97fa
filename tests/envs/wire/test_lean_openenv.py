"""Servers and sessions start without Gradio; the page of a Space, which needs it, is still made."""

import os
import subprocess
import sys

import pytest

SERVED = """
import sys
from apprentice.envs.catalog import server_app
import apprentice.envs.wire.protocol
paths = {getattr(route, "path", "") for route in server_app("echo", 1).routes}
print("gradio" in sys.modules, any(path.startswith("/web") for path in paths))
"""


@pytest.mark.long
@pytest.mark.parametrize(("page", "printed"), [("false", "False False"), ("true", "True True")])
def test_gradio_is_imported_exactly_where_the_page_is_shown(page: str, printed: str):
    shown = os.environ | {"ENABLE_WEB_INTERFACE": page}
    done = subprocess.run([sys.executable, "-c", SERVED], env=shown, capture_output=True, text=True, timeout=300)
    assert done.stdout.strip() == printed, done.stderr
