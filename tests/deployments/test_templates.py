"""Images, compose file and work pools keep what they promise: nothing here needs Docker or a cluster."""

import importlib.metadata
import json
import re
import tomllib
from pathlib import Path
from typing import Any

import prefect.settings
import pytest
import yaml
from packaging.requirements import Requirement
from prefect.server.schemas.actions import WorkPoolCreate
from prefect.utilities.schema_tools.validation import validate
from prefect.utilities.templating import apply_values
from prefect.workers.process import ProcessJobConfiguration, ProcessVariables

ROOT = Path(__file__).parent.parent.parent
DEPLOYMENTS = ROOT / "deployments"
PROCESS = [DEPLOYMENTS / "pools" / "cpu.json", DEPLOYMENTS / "pools" / "a100.json"]
KUBERNETES = [DEPLOYMENTS / "kubernetes" / "cpu-pool.json", DEPLOYMENTS / "kubernetes" / "a100-pool.json"]
DOCKERFILES = sorted((DEPLOYMENTS / "docker").glob("*.Dockerfile"))
COMPOSE = DEPLOYMENTS / "compose.yaml"
ENVIRONMENT = {
    "DO_NOT_TRACK": "1",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_CLIENT_MAX_RETRIES": "8",
    "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": "30",
}

every_pool = pytest.mark.parametrize("path", PROCESS + KUBERNETES, ids=lambda path: f"{path.parent.name}/{path.stem}")
every_kubernetes_pool = pytest.mark.parametrize("path", KUBERNETES, ids=lambda path: path.stem)
every_dockerfile = pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.stem)


def read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text())


def defaults(template: dict[str, Any]) -> dict[str, Any]:
    """The variables that have a value, as a worker finds them."""
    variables = template["variables"]["properties"]
    return {name: each["default"] for name, each in variables.items() if each.get("default") is not None}


def rendered(template: dict[str, Any], **values: Any) -> dict[str, Any]:
    """The job's configuration as a worker makes it of the pool's defaults, and of a deployment's job variables."""
    return apply_values(template["job_configuration"], defaults(template) | values)


def pod_of(path: Path, **values: Any) -> dict[str, Any]:
    return rendered(read(path), **values)["job_manifest"]["spec"]["template"]["spec"]


def services() -> dict[str, dict[str, Any]]:
    return yaml.safe_load(COMPOSE.read_text())["services"]


def locked(package: str) -> str:
    found = re.search(rf"^{package}==(.+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert found
    return found[1]


def version_of_the_project() -> str:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


def instructions(path: Path) -> list[str]:
    """A Dockerfile's instructions, each on one line."""
    lines = [line for line in path.read_text().splitlines() if line and not line.startswith("#")]
    return "\n".join(lines).replace("\\\n", " ").splitlines()


def last(path: Path, instruction: str) -> str:
    return [line for line in instructions(path) if line.startswith(f"{instruction} ")][-1].removeprefix(instruction)


@every_pool
def test_prefects_server_takes_a_pool_with_each_template(path: Path):
    """It refuses placeholders without a variable, and defaults that are not what their variable's schema says."""
    template = read(path)
    WorkPoolCreate(name=path.stem, type=path.parent.name, base_job_template=template)
    validate(defaults(template), template["variables"], raise_on_error=True, ignore_required=True)


@every_pool
def test_every_variable_of_a_template_is_used(path: Path):
    template = read(path)
    used = set(re.findall(r"{{ (\w+) }}", json.dumps(template["job_configuration"])))
    assert used == set(template["variables"]["properties"])


@pytest.mark.parametrize("path", PROCESS, ids=lambda path: path.stem)
def test_a_process_pool_differs_from_prefects_own_in_the_environment_alone(path: Path):
    template = read(path)
    schema = ProcessVariables.model_json_schema()
    assert set(template["variables"]["properties"]) == set(schema["properties"])
    configuration = ProcessJobConfiguration(**rendered(template))
    assert configuration.command is None
    assert configuration.env.items() >= ENVIRONMENT.items()


@pytest.mark.parametrize(("process", "kubernetes"), zip(PROCESS, KUBERNETES, strict=True), ids=["cpu", "a100"])
def test_a_stage_finds_the_same_environment_in_a_process_and_in_a_job(process: Path, kubernetes: Path):
    assert defaults(read(process))["env"] == defaults(read(kubernetes))["env"]


@every_pool
def test_every_setting_of_prefect_in_a_pool_exists(path: Path):
    named = {name for name in defaults(read(path))["env"] if name.startswith("PREFECT_")}
    assert named
    assert not [name for name in named if not hasattr(prefect.settings, name)]


def test_every_setting_of_prefect_in_images_and_services_exists():
    named = {name for service in services().values() for name in service.get("environment", {})}
    for path in DOCKERFILES:
        named |= set(re.findall(r"(\w+)=", last(path, "ENV")))
    named = {name for name in named if name.startswith("PREFECT_")}
    assert named
    assert not [name for name in named if not hasattr(prefect.settings, name)]


@every_kubernetes_pool
def test_a_job_runs_as_an_ordinary_user_without_rights(path: Path):
    pod = pod_of(path)
    assert pod["securityContext"].items() >= {"runAsNonRoot": True, "runAsUser": 1000, "fsGroup": 1000}.items()
    assert pod["automountServiceAccountToken"] is False
    security = pod["containers"][0]["securityContext"]
    assert security == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


@every_kubernetes_pool
def test_a_job_gets_its_secrets_by_reference_or_does_not_start(path: Path):
    container = pod_of(path)["containers"][0]
    assert container["envFrom"] == [{"secretRef": {"name": "apprentice-secrets", "optional": False}}]


@every_kubernetes_pool
def test_a_job_is_tried_once_and_swept_away(path: Path):
    """Prefect's runs are retried by Prefect: a second try by Kubernetes would run beside it."""
    spec = rendered(read(path))["job_manifest"]["spec"]
    assert (spec["backoffLimit"], spec["ttlSecondsAfterFinished"]) == (0, 3600)


@every_kubernetes_pool
def test_what_jobs_mount_can_be_shared_by_nodes_and_is_where_the_images_have_it(path: Path):
    documents = yaml.safe_load_all((path.parent / "claims.yaml").read_text())
    claims = {each["metadata"]["name"]: each["spec"]["accessModes"] for each in documents}
    pod = pod_of(path)
    paths = {mount["name"]: mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"]}
    mounted = {
        volume["persistentVolumeClaim"]["claimName"]: paths[volume["name"]]
        for volume in pod["volumes"]
        if "persistentVolumeClaim" in volume
    }
    assert mounted == {"apprentice-store": "/store", "apprentice-hf-cache": "/cache/huggingface"}
    assert claims == {name: ["ReadWriteMany"] for name in mounted}
    assert set(paths) == {volume["name"] for volume in pod["volumes"]}


def test_a_job_of_the_gpu_pool_gets_one_a100_and_memory_to_share():
    pod = pod_of(KUBERNETES[1])
    container = pod["containers"][0]
    assert pod["nodeSelector"] == {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB"}
    assert pod["tolerations"] == [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]
    assert container["resources"]["limits"] == {"nvidia.com/gpu": 1}
    assert {"name": "shm", "mountPath": "/dev/shm"} in container["volumeMounts"]
    assert {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "16Gi"}} in pod["volumes"]


def test_a_deployment_can_ask_for_other_gpus():
    pod = pod_of(KUBERNETES[1], gpus=2, gpu_product="NVIDIA-H100-80GB-HBM3", shm_size="32Gi")
    assert pod["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": 2}
    assert pod["nodeSelector"] == {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}
    assert pod["volumes"][-1]["emptyDir"]["sizeLimit"] == "32Gi"


def test_a_job_of_the_cpu_pool_holds_no_gpu():
    assert "nvidia" not in json.dumps(pod_of(KUBERNETES[0]))


@every_dockerfile
def test_an_image_installs_nothing_but_what_the_lock_allows(path: Path):
    installs = re.findall(r"pip install .*?(?=&&|$)", "\n".join(instructions(path)), re.MULTILINE)
    assert any(re.search(r"""\s"?\.(\[[\w,]+\]")?$""", install.strip()) for install in installs)
    for install in installs:
        assert "--constraint constraints.txt" in install


def test_the_gpu_image_has_every_extra_that_a_recipe_for_a_gpu_can_ask_for():
    extras = ["lora", "qlora", "liger"]
    assert set(extras) <= set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
    assert f'".[{",".join(extras)}]"' in last(DEPLOYMENTS / "docker" / "gpu.Dockerfile", "RUN")
    for package in ("peft", "bitsandbytes", "liger-kernel"):
        assert locked(package)


@every_dockerfile
def test_an_image_ends_as_an_ordinary_user_and_starts_its_pools_worker(path: Path):
    assert last(path, "USER").strip() == "1000:1000"
    pool = {"cpu": "cpu", "gpu": "a100"}[path.stem]
    assert json.loads(last(path, "CMD")) == ["prefect", "worker", "start", "--pool", pool]


@every_dockerfile
def test_an_image_keeps_what_lasts_on_the_volumes(path: Path):
    environment = dict(re.findall(r"(\w+)=(\S+)", last(path, "ENV")))
    folders = {name: environment[name] for name in ("APPRENTICE_STORE", "HF_HOME", "PREFECT_LOCAL_STORAGE_PATH")}
    assert folders == {
        "APPRENTICE_STORE": "/store",
        "HF_HOME": "/cache/huggingface",
        "PREFECT_LOCAL_STORAGE_PATH": "/store/.prefect",
    }
    assert json.loads(last(path, "VOLUME")) == ["/cache/huggingface", "/store"]


@every_dockerfile
def test_an_image_has_the_locks_python(path: Path):
    """It is written as X.Y, and is the one that pyproject.toml's tools check for."""
    checked = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pyright"]["pythonVersion"]
    assert instructions(path)[:2] == [f"ARG PYTHON_IMAGE=python:{checked}-slim", "FROM ${PYTHON_IMAGE}"]


def test_vllm_is_one_that_trl_takes():
    extra = [Requirement(each) for each in importlib.metadata.requires("trl") or []]
    allowed = next(each.specifier for each in extra if each.name == "vllm")
    given = re.search(r"^ARG VLLM_VERSION=(.+)$", (DEPLOYMENTS / "docker/gpu.Dockerfile").read_text(), re.MULTILINE)
    assert given
    assert allowed.contains(given[1])


def test_server_and_workers_have_the_locked_prefect():
    prefect = locked("prefect")
    server = services()["server"]
    assert server["image"] == f"apprentice-server:{prefect}"
    assert server["build"]["dockerfile_inline"].startswith(f"ARG PREFECT_IMAGE=prefecthq/prefect:{prefect}-")
    assert "--constraint /tmp/constraints.txt" in server["build"]["dockerfile_inline"]
    worker = yaml.safe_load((DEPLOYMENTS / "kubernetes" / "worker.yaml").read_text())["worker"]
    assert worker["image"]["prefectTag"].startswith(f"{prefect}-")


def test_images_bear_the_projects_version_everywhere():
    version = version_of_the_project()
    files = [COMPOSE, *KUBERNETES, *DOCKERFILES, DEPLOYMENTS / "kubernetes" / "README.md"]
    for path in files:
        tags = re.findall(r"apprentice-[cg]pu:([\w.]+)", path.read_text())
        assert tags, path
        assert set(tags) == {version}, path


def test_the_build_context_leaves_out_what_was_made_here_and_keeps_what_the_package_needs():
    left_out = (ROOT / ".dockerignore").read_text().split()
    assert {".git", ".venv", "artifacts", "runs", "build", "**/.env"} <= set(left_out)
    assert not {"README.md", "LICENSE", "deployments", "constraints.txt"} & set(left_out)


@every_dockerfile
def test_an_image_can_be_built_with_mirrors_and_without_dockers_own_registry(path: Path):
    """A `# syntax` line pulls from Docker Hub, and a cache mount needs BuildKit."""
    assert not re.search(r"^# syntax|--mount", path.read_text(), re.MULTILINE)
    assert "ARG PIP_INDEX_URL" in instructions(path), "which pip reads where it is given"
    installs = re.split(
        r"&&", " ".join(each for each in instructions(path) if each.startswith("RUN")).replace("RUN", "&&")
    )
    for install in (each for each in installs if "uv pip install" in each and "TORCH_INDEX_URL" not in each):
        assert "${PIP_INDEX_URL:+--default-index=$PIP_INDEX_URL}" in install


def test_the_compose_file_passes_on_mirrors_that_the_images_have():
    for name in ("cpu-worker", "a100-worker", "server"):
        build = services()[name]["build"]
        text = build.get("dockerfile_inline") or (DEPLOYMENTS / "docker" / Path(build["dockerfile"]).name).read_text()
        assert {*build["args"], "VLLM_VERSION"} >= {*re.findall(r"^ARG (\w+)", text, re.MULTILINE)} >= {*build["args"]}


def test_the_compose_file_opens_ports_to_this_machine_alone():
    ports = [port for service in services().values() for port in service.get("ports", [])]
    assert ports
    assert all(isinstance(port, str) and port.startswith("127.0.0.1:") for port in ports)


def test_the_compose_file_does_not_start_without_a_password_and_a_login():
    environment = services()["server"]["environment"]
    for name in ("PREFECT_SERVER_API_AUTH_STRING", "PREFECT_SERVER_DATABASE_PASSWORD"):
        assert re.fullmatch(r"\$\{\w+:\?.+\}", environment[name])


def test_workers_share_store_and_cache_and_only_one_has_the_gpu():
    cpu, a100 = services()["cpu-worker"], services()["a100-worker"]
    assert cpu["volumes"] == a100["volumes"] == ["store:/store", "hf-cache:/cache/huggingface"]
    assert "deploy" not in cpu
    device = a100["deploy"]["resources"]["reservations"]["devices"]
    assert device == [{"driver": "nvidia", "count": 1, "capabilities": ["gpu"]}]


@pytest.mark.parametrize(
    "path",
    [path for path in sorted(DEPLOYMENTS.rglob("*.*")) if path.suffix in (".json", ".yaml", ".md", ".Dockerfile")],
    ids=lambda path: str(path.relative_to(DEPLOYMENTS)),
)
def test_no_file_holds_a_secret(path: Path):
    """What is called a key, a token or a password is empty, left out (…), or taken from elsewhere ($, {{)."""
    text = path.read_text()
    assert not re.search(r"\b(sk-|hf_|pnu_|ghp_|AKIA)\w{12,}", text)
    secret = r"(?:PASSWORD|TOKEN|API_KEY|AUTH_STRING|auth-string)"
    given = re.findall(rf"""{secret}"?(?:, value)?[:=][ ]*["']?([^\s"']*)""", text)
    assert [value for value in given if value and not value.startswith(("$", "{{", "#")) and "…" not in value] == []
