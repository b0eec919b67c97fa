"""A Hugging Face Hub on 127.0.0.1 for tests: what the unmodified client asks for, kept in one folder, failing on demand.

`python -m tests.hub_server FOLDER [--port N] [--stay]` prints its URL and ends when its standard input ends. Killed with
-9 and started again it knows all that it acknowledged and nothing by halves: what changes is written beside and renamed.
The client needs HF_ENDPOINT and HF_HUB_DISABLE_XET=1 before huggingface_hub is imported (`LocalHub.variables`).
Tokens: "bad" is refused, "read" may not write, any other may; nobody writes, or sees a private repo, without one.

FOLDER/repos/{models,datasets,spaces}/OWNER/NAME   repo.json, commits/, blobs/; a Space's stage stands in a file `stage`
FOLDER/requests.jsonl   a line a request, written before its answer: {"method", "path", "status"}; the path is unquoted
                        and without its query; the status is the fault's name where there was no answer
FOLDER/faults.json      [{"match": regex on "METHOD path", "do": 500 | 503 | 429 | 401 | 403 | "quota" | "cut" | "hang",
                        "times": 1, "after": 0, "done": false}]. A fault lets `after` matching requests pass and meets the
                        `times` next ones (all of them without `times`), across restarts; writing the file counts anew.
                        The request is not carried out, or with `done` it is and only its answer is lost. "cut" closes
                        the connection after half of the request's body, or of the answer's if it has none or is done.
"""

import argparse
import base64
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
import traceback
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

USER = "tester"
PREFIXES = {"models": "", "datasets": "datasets/", "spaces": "spaces/"}
LARGE = 10 * 2**20
LARGE_NAMES = re.compile(
    r".*(\.(arrow|bin|gz|h5|npy|npz|onnx|parquet|pkl|pt|pth|safetensors|tar|tgz|zip|zst)|tfevents.*)"
)
WORDS = {
    500: "Internal Error - We're working hard to fix this as soon as possible!",
    503: "Service Unavailable",
    429: "We had to rate limit you, hit the quota of your plan",
    401: "Invalid credentials in Authorization header",
    403: "You don't have the necessary permissions to access this resource",
    "quota": "Private repository storage limit reached, please upgrade your plan to increase your private storage limit.",
}


@dataclass
class Reply:
    """What is answered: JSON or bytes, or a part of a file."""

    status: int = 200
    body: Any = b""
    headers: dict[str, str] = field(default_factory=dict)
    part: tuple[Path, int, int] | None = None  # file, first byte, count


class Refused(Exception):
    def __init__(self, status: int, error: str, code: str = "", **more: str):
        headers = {"X-Error-Message": error, **({"X-Error-Code": code} if code else {}), **more}
        self.reply = Reply(status, {"error": error}, headers)


def no_repo() -> Refused:
    return Refused(404, "Repository not found", "RepoNotFound")


class Hub(ThreadingHTTPServer):
    """The server, its folder and the faults it was told of."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, folder: Path, port: int = 0):
        self.folder = folder
        self.lock = threading.RLock()
        shutil.rmtree(folder / "tmp", ignore_errors=True)
        (folder / "tmp").mkdir(parents=True)
        self.log = os.open(folder / "requests.jsonl", os.O_CREAT | os.O_APPEND | os.O_WRONLY)
        super().__init__(("127.0.0.1", port), Answer)

    def beside(self) -> Path:
        return self.folder / "tmp" / uuid.uuid4().hex

    def write(self, path: Path, data: bytes) -> None:
        beside = self.beside()
        beside.write_bytes(data)
        path.parent.mkdir(parents=True, exist_ok=True)
        os.replace(beside, path)

    def fault(self, request: str) -> dict[str, Any] | None:
        """The fault that meets this request, counted."""
        told, counted = self.folder / "faults.json", self.folder / "faults.counted"
        with self.lock:
            for attempt in range(10):
                try:
                    written = told.stat().st_mtime_ns
                    faults = json.loads(told.read_text())
                    break
                except FileNotFoundError:
                    return None
                except ValueError:  # a test is writing it
                    if attempt == 9:
                        raise
                    time.sleep(0.01)
            counts = json.loads(counted.read_text()) if counted.exists() else {}
            if counts.get("written") != written:
                counts = {"written": written, "seen": [0] * len(faults)}
            for place, fault in enumerate(faults):
                if fault["do"] not in (*WORDS, "cut", "hang"):
                    raise ValueError(f"not a fault: {fault}")
                if re.search(fault["match"], request):
                    counts["seen"][place] += 1
                    self.write(counted, json.dumps(counts).encode())
                    if 0 < counts["seen"][place] - fault.get("after", 0) <= fault.get("times", float("inf")):
                        return fault
        return None

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), ConnectionError):
            traceback.print_exc()


class Repo:
    """A repo's folder. The rename of repo.json is the moment at which a commit, a tag or a branch is there."""

    def __init__(self, hub: Hub, kind: str, owner: str, name: str):
        if kind not in PREFIXES or not all(re.fullmatch(r"[\w-][\w.-]*", part) for part in (owner, name)):
            raise no_repo()
        self.hub, self.kind, self.id = hub, kind, f"{owner}/{name}"
        self.folder = hub.folder / "repos" / kind / owner / name
        self.path = PREFIXES[kind] + self.id

    def state(self) -> dict[str, Any]:
        try:
            return json.loads((self.folder / "repo.json").read_bytes())
        except FileNotFoundError:
            raise no_repo() from None

    def keep(self, state: dict[str, Any]) -> None:
        self.hub.write(self.folder / "repo.json", json.dumps(state).encode())

    def at(self, revision: str) -> dict[str, Any]:
        """The commit of a branch, a tag or a commit's id, which may be shortened."""
        state = self.state()
        sha = state["branches"].get(revision) or state["tags"].get(revision) or revision
        if re.fullmatch("[0-9a-f]{7,40}", sha):
            for file in (self.folder / "commits").glob(f"{sha}*"):
                return json.loads(file.read_bytes())
        raise Refused(404, f"Invalid rev id: {revision}", "RevisionNotFound")

    def blob(self, file: dict[str, Any]) -> Path:
        return self.folder / "blobs" / (file["sha256"] or file["oid"])

    def add(self, parent: dict[str, Any] | None, header: dict[str, Any], operations: list[dict[str, Any]]) -> str:
        """Writes a commit and its blobs that no ref names yet."""
        files: dict[str, dict[str, Any]] = dict(parent["files"]) if parent else {}
        for operation in operations:
            key, value = operation["key"], operation["value"]
            path: str = value["path"].rstrip("/")
            if not path or {"", ".", "..", ".git"} & set(path.split("/")):
                raise Refused(400, f"Invalid path: {path}")
            if key == "file":
                data = (
                    base64.b64decode(value["content"])
                    if value.get("encoding") == "base64"
                    else value["content"].encode()
                )
                files[path] = {"oid": git_hash(data), "size": len(data), "sha256": None}
                if not self.blob(files[path]).exists():
                    self.hub.write(self.blob(files[path]), data)
            elif key == "lfsFile":
                blob = self.blob({"sha256": value["oid"]})
                if not blob.exists():
                    raise Refused(400, f"LFS pointer pointed to a file that does not exist: {path}")
                size = blob.stat().st_size
                files[path] = {"oid": git_hash(pointer(value["oid"], size)), "size": size, "sha256": value["oid"]}
            else:
                gone = [
                    name for name in files if name == path or (key == "deletedFolder" and name.startswith(path + "/"))
                ]
                if not gone:
                    raise Refused(404, "A file with this name doesn't exist", "EntryNotFound")
                for name in gone:
                    del files[name]
        title, message, up = header["summary"], header.get("description") or "", parent["id"] if parent else None
        listing = sorted((path, file["oid"]) for path, file in files.items())
        sha = hashlib.sha1(json.dumps([listing, up, title, message]).encode()).hexdigest()
        for file in files.values():
            file.setdefault("commit", {"id": sha, "title": title, "date": now()})
        commit = {"id": sha, "parent": up, "title": title, "message": message, "date": now(), "files": files}
        self.hub.write(self.folder / "commits" / sha, json.dumps(commit).encode())
        return sha

    def create(self, wanted: dict[str, Any]) -> None:
        """Makes the whole repo beside and renames it."""
        final, self.folder = self.folder, self.hub.beside()
        rules = f"# large files: {LARGE_NAMES.pattern}\n".encode()
        value = {"path": ".gitattributes", "content": base64.b64encode(rules).decode(), "encoding": "base64"}
        sha = self.add(None, {"summary": "initial commit"}, [{"key": "file", "value": value}])
        private = wanted.get("private") or wanted.get("visibility") == "private"
        state = {"id": self.id, "private": bool(private), "created": now(), "sdk": wanted.get("sdk")}
        self.keep({**state, "branches": {"main": sha}, "tags": {}})
        beside, self.folder = self.folder, final
        final.parent.mkdir(parents=True, exist_ok=True)
        os.rename(beside, final)

    def commit(self, branch: str, header: dict[str, Any], operations: list[dict[str, Any]]) -> str:
        with self.hub.lock:
            state = self.state()
            if branch not in state["branches"]:
                raise Refused(404, f"Invalid rev id: {branch}", "RevisionNotFound")
            parent = self.at(branch)
            if not parent["id"].startswith(header.get("parentCommit") or ""):
                raise Refused(412, "A commit has happened since. Please refresh and try again.")
            state["branches"][branch] = sha = self.add(parent, header, operations)
            self.keep(state)
            return sha

    def info(self, revision: str = "main", blobs: bool = False, expand: list[str] | None = None) -> dict[str, Any]:
        state, commit = self.state(), self.at(revision)
        siblings = [{"rfilename": path} for path in commit["files"]]
        if blobs:
            for sibling, file in zip(siblings, commit["files"].values(), strict=True):
                sibling.update(blobId=file["oid"], size=file["size"])
                if file["sha256"]:
                    sibling["lfs"] = {**large(file), "sha256": file["sha256"]}
        told = {"sha": commit["id"], "author": self.id.split("/")[0], "lastModified": commit["date"]}
        told |= {"createdAt": state["created"], "private": state["private"], "gated": False, "disabled": False}
        told |= {"downloads": 0, "likes": 0, "tags": [], "siblings": siblings}
        if self.kind == "spaces":
            told |= {"sdk": state["sdk"], "runtime": self.runtime()}
        told = {key: value for key, value in told.items() if not expand or key in expand}
        return {"_id": hashlib.sha1(self.id.encode()).hexdigest()[:24], "id": self.id, **told}

    def runtime(self) -> dict[str, Any]:
        stage = self.folder / "stage"
        stage = stage.read_text().strip() if stage.exists() else "RUNNING"
        return {"stage": stage, "hardware": {"current": "cpu-basic", "requested": "cpu-basic"}, "storage": None}


def git_hash(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def pointer(oid: str, size: int) -> bytes:
    return f"version https://git-lfs.github.com/spec/v1\noid sha256:{oid}\nsize {size}\n".encode()


def large(file: dict[str, Any]) -> dict[str, Any]:
    return {"oid": file["sha256"], "size": file["size"], "pointerSize": len(pointer(file["sha256"], file["size"]))}


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def entries(files: dict[str, dict[str, Any]], expand: bool) -> dict[str, dict[str, Any]]:
    """The tree: every file and every folder by its path."""
    found: dict[str, dict[str, Any]] = {}
    for path, file in sorted(files.items()):
        for place in [place for place, letter in enumerate(path) if letter == "/"]:
            inside = [(name, other["oid"]) for name, other in files.items() if name.startswith(path[: place + 1])]
            oid = hashlib.sha1(json.dumps(inside).encode()).hexdigest()
            found[path[:place]] = {"type": "directory", "oid": oid, "size": 0, "path": path[:place]}
        found[path] = {"type": "file", "oid": file["oid"], "size": file["size"], "path": path}
        found[path] |= {"lfs": large(file)} if file["sha256"] else {}
        found[path] |= {"lastCommit": file["commit"]} if expand else {}
    return found


class Answer(BaseHTTPRequestHandler):
    """One connection."""

    server: Hub  # type: ignore[assignment]
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = 2**16

    def handle_request(self) -> None:
        target = urlsplit(self.path)
        self.query = parse_qs(target.query)
        self.parts = [unquote(part) for part in target.path.strip("/").split("/")]
        self.where = "/" + "/".join(self.parts)
        self.body = self.incoming()
        fault = self.server.fault(f"{self.command} {self.where}") or {}
        do, done = fault.get("do"), fault.get("done", False)
        length = int(self.headers.get("Content-Length") or 0)
        try:
            if do == "cut" and not done and length:
                self.rfile.read(length // 2)
                return self.lose("cut")
            reply = self.carry_out() if not do or done or do == "cut" else Reply()
            for _ in self.body:
                pass  # what was not looked at
            if do == "hang":
                self.lose("hang")
                self.rfile.read(1)  # until the client goes away
            elif do == "cut":
                self.answer(reply, "cut")
            elif do:
                refused = Refused(
                    403 if do == "quota" else do, WORDS[do], **({"Retry-After": "1"} if do == 429 else {})
                )
                self.answer(refused.reply)
            else:
                self.answer(reply)
        except ConnectionError:
            self.lose("gone")

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = handle_request

    def lose(self, status: str) -> None:
        self.note(status)
        self.close_connection = True

    def note(self, status: int | str) -> None:
        line = json.dumps({"method": self.command, "path": self.where, "status": status})
        os.write(self.server.log, line.encode() + b"\n")

    def incoming(self) -> Iterator[bytes]:
        """The request's body. Raises ConnectionError if it ends early."""
        chunked = "chunked" in self.headers.get("Transfer-Encoding", "")
        left = int(self.rfile.readline(), 16) if chunked else int(self.headers.get("Content-Length") or 0)
        while left:
            data = self.rfile.read(min(left, 2**18))
            if not data:
                raise ConnectionResetError("half a body")
            yield data
            left -= len(data)
            if chunked and not left:
                self.rfile.readline()
                left = int(self.rfile.readline(), 16)
        if chunked:
            self.rfile.readline()

    def carry_out(self) -> Reply:
        try:
            scheme, _, token = self.headers.get("Authorization", "").partition(" ")
            self.token = token if scheme == "Bearer" else ""
            if self.token == "bad":
                raise Refused(401, WORDS[401])
            return self.route()
        except Refused as refused:
            return refused.reply
        except (ValueError, KeyError, TypeError) as error:
            traceback.print_exc()
            return Refused(400, f"Bad request: {error!r}").reply

    def answer(self, reply: Reply, fault: str = "") -> None:
        data = reply.body if isinstance(reply.body, bytes) else json.dumps(reply.body).encode()
        path, first, count = reply.part or (None, 0, len(data))
        kind = "application/json" if not isinstance(reply.body, bytes) else "application/octet-stream"
        headers = {"Content-Type": kind, "Content-Length": str(count), **reply.headers}
        lines = [
            f"HTTP/1.1 {reply.status} {HTTPStatus(reply.status).phrase}",
            *(f"{k}: {v}" for k, v in headers.items()),
        ]
        head = "\r\n".join([*lines, "", ""]).encode("latin-1", "replace")
        count = 0 if self.command == "HEAD" else count
        if fault:
            self.lose(fault)
            head, count = (head, count // 2) if count else (head[: len(head) // 2], 0)
        else:
            self.note(reply.status)
        self.wfile.write(head)
        if path and count:
            self.wfile.flush()
            with path.open("rb") as file:
                self.connection.sendfile(file, first, count)
        else:
            self.wfile.write(data[:count])

    def asked(self) -> Any:
        return json.loads(b"".join(self.body))

    def may_write(self, kind: str = "") -> None:
        if not self.token:
            raise Refused(401, "Invalid username or password.")
        if self.token == "read":
            rights = f"You don't have the rights to create a {kind} under this namespace"
            raise Refused(403, rights if kind else "You must use a write token to upload to a repository")

    def open(self, kind: str, owner: str, name: str) -> Repo:
        repo = Repo(self.server, kind, owner, name)
        try:
            hidden = repo.state()["private"] and not self.token
        except Refused:
            hidden = not self.token
            if not hidden:
                raise
        if hidden:
            raise Refused(401, "Invalid username or password.", "RepoNotFound")
        return repo

    def route(self) -> Reply:
        base = f"http://{self.headers['Host']}"
        match [self.command, *self.parts]:
            case ["GET", "api", "whoami-v2"]:
                if not self.token:
                    raise Refused(401, "Invalid username or password.")
                role = {"displayName": "test", "role": "read" if self.token == "read" else "write"}
                auth = {"type": "access_token", "accessToken": role}
                return Reply(
                    body={"type": "user", "id": USER, "name": USER, "fullname": USER, "orgs": [], "auth": auth}
                )
            case ["POST", "api", "validate-yaml"]:
                return Reply(body={"errors": [], "warnings": []})
            case [("POST" | "DELETE") as method, "api", "repos", "create" | "delete"]:
                asked = self.asked()
                kind = asked.get("type") or "model"
                self.may_write(kind)
                repo = Repo(self.server, kind + "s", asked.get("organization") or USER, asked["name"])
                told = {"url": f"{base}/{repo.path}", "name": repo.id, "id": repo.id}
                with self.server.lock:
                    if method == "DELETE":
                        repo.state()
                        beside = self.server.beside()
                        os.rename(repo.folder, beside)
                        shutil.rmtree(beside)
                    elif repo.folder.exists():
                        return Reply(409, {"error": f"You already created this {kind} repo", **told})
                    else:
                        repo.create(asked)
                return Reply(body=told)
            case ["GET", "api", kind] if kind in PREFIXES:
                return self.listing(kind)
            case [method, "api", kind, owner, name, *rest] if kind in PREFIXES:
                return self.api(self.open(kind, owner, name), [method, *rest], base)
            case ["POST", *kind, owner, name, "info", "lfs", "objects", "batch"] if len(kind) < 2:
                self.may_write()
                repo = self.open(kind[0] if kind else "models", owner, name.removesuffix(".git"))
                objects = [{"oid": one["oid"], "size": one["size"]} for one in self.asked()["objects"]]
                for one in objects:
                    if not repo.blob({"sha256": one["oid"]}).exists():
                        href = f"{base}/lfs/{repo.kind}/{repo.id}/{one['oid']}"
                        one["actions"] = {"upload": {"href": href}, "verify": {"href": f"{href}/verify"}}
                return Reply(body={"transfer": "basic", "objects": objects})
            case [("PUT" | "POST") as method, "lfs", kind, owner, name, oid, *_]:
                repo = Repo(self.server, kind, owner, name)  # the client sends no token here: the address stands for it
                repo.state()
                return self.store(repo, oid) if method == "PUT" else self.verify(repo)
            case ["GET" | "HEAD", ("datasets" | "spaces") as kind, owner, name, "resolve", revision, *path]:
                return self.file(self.open(kind, owner, name), revision, "/".join(path))
            case ["GET" | "HEAD", owner, name, "resolve", revision, *path]:
                return self.file(self.open("models", owner, name), revision, "/".join(path))
        raise Refused(404, f"Sorry, we can't find the page you are looking for: {self.command} {self.where}")

    def api(self, repo: Repo, asked: list[str], base: str) -> Reply:
        if asked[0] != "GET" and asked[1:2] != ["paths-info"]:
            self.may_write()
        flags = {key for key, values in self.query.items() if values[-1].lower() in ("true", "1")}
        match asked:
            case ["GET"] | ["GET", "revision", _]:
                return Reply(
                    body=repo.info(asked[-1] if len(asked) > 1 else "main", "blobs" in flags, self.query.get("expand"))
                )
            case ["POST", "preupload", revision]:
                files, told = repo.at(revision)["files"], []
                for one in self.asked()["files"]:
                    lfs = one["size"] > LARGE or LARGE_NAMES.fullmatch(one["path"])
                    told.append({"path": one["path"], "uploadMode": "lfs" if lfs else "regular", "shouldIgnore": False})
                    if old := files.get(one["path"]):
                        told[-1]["oid"] = old["sha256"] or old["oid"]
                return Reply(body={"files": told})
            case ["POST", "commit", branch]:
                if "create_pr" in flags:
                    raise Refused(400, "This Hub has no pull requests")
                header, *lines = [json.loads(line) for line in b"".join(self.body).splitlines() if line.strip()]
                sha = repo.commit(branch, header["value"], lines)
                url = f"{base}/{repo.path}/commit/{sha}"
                return Reply(body={"success": True, "commitOid": sha, "commitUrl": url, "hookOutput": ""})
            case ["GET", "commits", revision]:
                commits = [repo.at(revision)]
                while commits[-1]["parent"]:
                    commits.append(repo.at(commits[-1]["parent"]))
                keys = ("id", "title", "message", "date")
                return Reply(body=[{key: one[key] for key in keys} | {"authors": [{"user": USER}]} for one in commits])
            case ["GET", "tree", revision, *path]:
                start = "/".join([*path, ""]) if path else ""
                found = {
                    p: e
                    for p, e in entries(repo.at(revision)["files"], "expand" in flags).items()
                    if p.startswith(start)
                }
                if start and not found:
                    raise Refused(404, f"{start[:-1]} does not exist on {revision}", "EntryNotFound")
                deep = "recursive" in flags
                return Reply(
                    body=[entry for path, entry in found.items() if deep or "/" not in path.removeprefix(start)]
                )
            case ["POST", "paths-info", revision]:
                form = parse_qs(b"".join(self.body).decode())
                found = entries(repo.at(revision)["files"], form.get("expand") == ["true"])
                return Reply(
                    body=[found[path.strip("/")] for path in form.get("paths", []) if path.strip("/") in found]
                )
            case ["GET", "refs"]:
                state, told = repo.state(), {"converts": [], "pullRequests": []}
                for kind, under in (("branches", "heads"), ("tags", "tags")):
                    refs = state[kind].items()
                    told[kind] = [{"name": n, "ref": f"refs/{under}/{n}", "targetCommit": sha} for n, sha in refs]
                return Reply(body=told)
            case [("POST" | "DELETE") as method, ("tag" | "branch") as kind, name]:
                return self.ref(repo, method, {"tag": "tags", "branch": "branches"}[kind], name)
            case ["GET", "auth-check", *write]:
                if write:
                    self.may_write()
                return Reply(body={})
            case ["GET", "runtime"] | ["POST", "restart"] if repo.kind == "spaces":
                if asked[0] == "POST":
                    self.server.write(repo.folder / "stage", b"RUNNING")
                return Reply(body=repo.runtime())
        raise Refused(404, f"Sorry, we can't find the page you are looking for: {self.command} {self.where}")

    def ref(self, repo: Repo, method: str, kind: str, name: str) -> Reply:
        """Makes or deletes a tag or a branch. A tag's name is in the body and its revision in the path."""
        asked = self.asked() if method == "POST" else {}
        with self.server.lock:
            state = repo.state()
            start = asked.get("startingPoint") or "main"
            if method == "POST" and kind == "tags":
                name, start = asked["tag"], name
            if method == "DELETE":
                if kind == "branches" and name == "main":
                    raise Refused(403, "Cannot delete the default branch")
                if state[kind].pop(name, None) is None:
                    raise Refused(404, f"Invalid rev id: {name}", "RevisionNotFound")
            elif name in state[kind]:
                raise Refused(409, f"{'Tag' if kind == 'tags' else 'Branch'} reference exists already: {name}")
            else:
                state[kind][name] = repo.at(start)["id"]
            repo.keep(state)
        return Reply()

    def listing(self, kind: str) -> Reply:
        asked = {key: values[-1] for key, values in self.query.items()}
        told = []
        for file in sorted((self.server.folder / "repos" / kind).glob(f"{asked.get('author', '*')}/*/repo.json")):
            repo = Repo(self.server, kind, *file.parts[-3:-1])
            if asked.get("search", "") in repo.id and (self.token or not repo.state()["private"]):
                told.append(repo.info(expand=self.query.get("expand")))
        return Reply(body=told[: int(asked.get("limit", len(told)))])

    def store(self, repo: Repo, oid: str) -> Reply:
        """A large file arrives: it is there when all of it is and its hash is right."""
        beside, digest = self.server.beside(), hashlib.sha256()
        try:
            with beside.open("wb") as file:
                for data in self.body:
                    digest.update(data)
                    file.write(data)
            if digest.hexdigest() != oid:
                raise Refused(400, "The content does not have this hash")
            repo.blob({"sha256": oid}).parent.mkdir(exist_ok=True)
            os.replace(beside, repo.blob({"sha256": oid}))
        finally:
            beside.unlink(missing_ok=True)
        return Reply(headers={"ETag": f'"{oid}"'})

    def verify(self, repo: Repo) -> Reply:
        asked = self.asked()
        blob = repo.blob({"sha256": asked["oid"]})
        if not blob.exists() or blob.stat().st_size != asked["size"]:
            raise Refused(404, "Object does not exist on the server")
        return Reply(body={})

    def file(self, repo: Repo, revision: str, path: str) -> Reply:
        commit = repo.at(revision)
        if path not in commit["files"]:
            raise Refused(404, "Entry not found", "EntryNotFound", **{"X-Repo-Commit": commit["id"]})
        file = commit["files"][path]
        size, etag = file["size"], f'"{file["sha256"] or file["oid"]}"'
        headers = {"ETag": etag, "X-Repo-Commit": commit["id"], "Accept-Ranges": "bytes"}
        if file["sha256"]:
            headers |= {"X-Linked-Size": str(size), "X-Linked-Etag": etag}
        asked = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", "").strip())
        if not asked:
            return Reply(headers=headers, part=(repo.blob(file), 0, size))
        first, last = asked.groups()
        start = int(first) if first else max(0, size - int(last))
        end = min(size, int(last) + 1) if first and last else size
        if start >= end:
            raise Refused(416, "Range not satisfiable", **{"Content-Range": f"bytes */{size}"})
        headers["Content-Range"] = f"bytes {start}-{end - 1}/{size}"
        return Reply(206, headers=headers, part=(repo.blob(file), start, end - start))


class LocalHub:
    """The server as a child process: for tests that kill it, start it again, make it fail and read its log."""

    def __init__(self, folder: Path):
        self.folder, self.port = folder, 0
        self.start()

    def start(self) -> None:
        folder, port = str(self.folder), str(self.port)
        command = [sys.executable, "-m", "tests.hub_server", folder, "--port", port]
        root = Path(__file__).parent.parent
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, cwd=root, stdin=pipe, stdout=pipe, text=True, start_new_session=True)
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().strip()
        assert self.url, "the Hub ended at its start"
        self.port = int(self.url.rsplit(":", 1)[1])

    def kill(self) -> None:
        """Ends it with SIGKILL."""
        self.process.kill()
        self.process.communicate()

    def variables(self, cache: Path, token: str = "write") -> dict[str, str]:
        """What a client's process needs in its environment before it imports huggingface_hub or datasets."""
        hub = {"HF_ENDPOINT": self.url, "HF_HUB_DISABLE_XET": "1", "HF_HUB_OFFLINE": "0", "HF_DATASETS_OFFLINE": "0"}
        return hub | {"HF_HOME": str(cache), "HF_TOKEN": token, "HF_HUB_DISABLE_PROGRESS_BARS": "1"}

    def fail(self, *faults: dict[str, Any]) -> None:
        """From now on these faults and no others; see the top of this file."""
        beside = self.folder / "faults.beside"
        beside.write_text(json.dumps(faults))
        os.replace(beside, self.folder / "faults.json")

    def requests(self, match: str = "") -> list[str]:
        """What was asked so far, as "METHOD path status"."""
        lines = [json.loads(line) for line in (self.folder / "requests.jsonl").read_text().splitlines()]
        return [text for line in lines if re.search(match, text := "{method} {path} {status}".format(**line))]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--stay", action="store_true", help="do not end when standard input does")
    asked = parser.parse_args()
    hub = Hub(asked.folder, asked.port)
    print(f"http://127.0.0.1:{hub.server_address[1]}", flush=True)
    threading.Thread(target=hub.serve_forever, daemon=True).start()
    if asked.stay:
        threading.Event().wait()
    sys.stdin.read()


if __name__ == "__main__":
    main()
