"""A published package is served from its folder, wherever its modules are imported from."""

from pathlib import Path

import pytest
import yaml

from apprentice.flows.cli.adopt import adopt, adoptable
from apprentice.flows.runtime.package_server import commands_of
from apprentice.tasks.reporting.errors import Stop
from tests.envs.published import parity as parity_module

LONG = pytest.mark.long


def test_a_folder_is_served_by_what_its_manifest_says(tmp_path: Path):
    package = tmp_path / "my_env"
    package.mkdir()
    with pytest.raises(Stop, match=r"openenv\.yaml cannot be read"):
        commands_of(package)
    (package / "openenv.yaml").write_text("app: server.app:app\n")
    here = f"uvicorn --app-dir {package} server.app:app --host 127.0.0.1 --port {{port}}"
    assert commands_of(package) == [here]
    (package / "src").mkdir()
    (package / "__init__.py").touch()
    above, *others = commands_of(package)
    assert above == f"uvicorn --app-dir {tmp_path} my_env.server.app:app --host 127.0.0.1 --port {{port}}"
    assert others == [here, here.replace(str(package), f"{package}/src")]
    (package / "openenv.yaml").write_text("app: my_env.server.app:app\n")
    assert above in commands_of(package)
    (package / "openenv.yaml").write_text("app: 5\n")
    with pytest.raises(Stop, match="does not say what to serve"):
        commands_of(package)


@LONG
@pytest.mark.parametrize(
    "imports", ["from models import app", "from ..models import app", "from theirs.models import app"]
)
def test_a_folder_is_served_wherever_its_modules_are_imported_from(tmp_path: Path, imports: str):
    package = tmp_path / "some where" / "theirs"
    (package / "server").mkdir(parents=True)
    for place, text in {
        "openenv.yaml": "app: server.app:app",
        "__init__.py": "",
        "models.py": Path(parity_module.__file__).read_text() + "\n\napp = app(parity('fixed'))\n",
        "server/app.py": f"{imports}\n",
    }.items():
        (package / place).write_text(text)
    with adoptable(str(package)) as (server, command):
        recipe = yaml.safe_load(adopt(server, str(package), "gpt-5-mini", command=command))
    assert recipe["server"]["command"] == command
    assert recipe["environment"]["one_task"] is True


@LONG
def test_a_folder_that_nothing_serves_is_refused_with_each_reason(tmp_path: Path):
    (tmp_path / "openenv.yaml").write_text("app: server.app:app\n")
    (tmp_path / "__init__.py").touch()
    (tmp_path / "server").mkdir()
    (tmp_path / "server" / "app.py").write_text("import no_such_package\n")
    with pytest.raises(Stop, match="No module named 'no_such_package'"), adoptable(str(tmp_path)):
        pass
