"""A Hugging Face Hub on 127.0.0.1 for tests: what the unmodified client asks for, kept in a folder, failing on demand.

`python -m tests.hub_server FOLDER [--port N] [--stay]` prints its URL and ends when its standard input ends. Killed
with -9 and started again it knows all that it acknowledged and nothing by halves: what changes is written and renamed.
The client needs HF_ENDPOINT and HF_HUB_DISABLE_XET=1 before huggingface_hub is imported: see `LocalHub.variables`.
Tokens: "bad" is refused, "read" may not write, any other may; nobody writes, or sees a private repo, without one.
What follows a dash does not count: with "write-…" a test knows its token again wherever it is written.

FOLDER/repos/{models,datasets,spaces}/OWNER/NAME   repo.json, commits/, blobs/; a Space's stage is in a file `stage`
FOLDER/requests.jsonl   a line a request, written before its answer: {"method", "path", "status"}. The path is unquoted
                        and without its query; the status is "cut", "hang" or "gone" where there was no whole answer
FOLDER/faults.json      [{"match": regex on "METHOD path", "do": 500 | 503 | 429 | 401 | 403 | "quota" | "cut" | "hang",
                        "times": 1, "after": 0, "done": false}, …]; rename it into place. A fault lets `after` matching
                        requests pass and meets the `times` next ones (without `times` all), across restarts too; to
                        write the file is to count anew. A request that meets a fault is not carried out; with `done`
                        it is, and its answer is lost. "cut" closes the connection after half of the request's body,
                        or of the answer's where the request has none or is done. 429 says "retry_after", else 1 s,
                        or has "headers".
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

Json = dict[str, Any]
USER = "tester"
PART = 16 * 2**20
"""Bytes from which on a large file is sent in parts, as the Hub has it with larger ones."""
PREFIXES = {"models": "", "datasets": "datasets/", "spaces": "spaces/"}
LARGE = re.compile(r".*\.(arrow|bin|gz|h5|npy|npz|onnx|parquet|pkl|pt|pth|safetensors|tar|tgz|zip|zst)")
WORDS = {
    500: "Internal Error - We're working hard to fix this as soon as possible!",
    503: "Service Unavailable",
    429: "We had to rate limit you",
    401: "Invalid credentials in Authorization header",
    403: "You must use a write token to upload to a repository",
    "quota": "Private repository storage limit reached, please upgrade your plan to increase your limit",
}


@dataclass
class Reply:
    """What is answered: JSON, or a part of a file."""

    body: Any = None
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    part: tuple[Path, int, int] | None = None  # file, first byte, count


class Refused(Exception):
    def __init__(self, status: int, error: str, code: str = "", **headers: str):
        codes = {"X-Error-Code": code} if code else {}
        self.reply = Reply({"error": error}, status, {"X-Error-Message": error, **codes, **headers})


class Hub(ThreadingHTTPServer):
    """The server, its folder and the faults it was told of."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, folder: Path, port: int):
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

    def collection(self, slug: str) -> Path:
        return self.folder / "collections" / f"{slug}.json"

    def fault(self, request: str) -> Json:
        """The fault that meets this request, counted; {} for none."""
        plan, counted = self.folder / "faults.json", self.folder / "faults.counted"
        if not plan.exists():
            return {}
        with self.lock:
            faults, written = json.loads(plan.read_text()), plan.stat().st_mtime_ns
            counts = json.loads(counted.read_text()) if counted.exists() else {}
            if counts.get("written") != written:
                counts = {"written": written, "seen": [0] * len(faults)}
            for place, fault in enumerate(faults):
                if re.search(fault["match"], request):
                    counts["seen"][place] += 1
                    self.write(counted, json.dumps(counts).encode())
                    if 0 < counts["seen"][place] - fault.get("after", 0) <= fault.get("times", float("inf")):
                        return fault
        return {}

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), ConnectionError):
            traceback.print_exc()


class Repo:
    """A repo's folder. The rename of repo.json is the moment at which a commit or a tag is there."""

    def __init__(self, hub: Hub, kind: str, owner: str, name: str):
        if kind not in PREFIXES or not all(re.fullmatch(r"\w[\w.-]*", part) for part in (owner, name)):
            raise Refused(404, "Repository not found", "RepoNotFound")
        self.hub, self.kind, self.id = hub, kind, f"{owner}/{name}"
        self.folder = hub.folder / "repos" / kind / owner / name
        self.path = PREFIXES[kind] + self.id

    def state(self) -> Json:
        try:
            return json.loads((self.folder / "repo.json").read_bytes())
        except FileNotFoundError:
            raise Refused(404, "Repository not found", "RepoNotFound") from None

    def keep(self, state: Json) -> None:
        self.hub.write(self.folder / "repo.json", json.dumps(state).encode())

    def at(self, revision: str) -> Json:
        """The commit of a branch, a tag or a commit's id, which may be shortened."""
        state = self.state()
        sha = state["branches"].get(revision) or state["tags"].get(revision) or revision
        if re.fullmatch("[0-9a-f]{7,40}", sha):
            for file in (self.folder / "commits").glob(f"{sha}*"):
                return json.loads(file.read_bytes())
        raise Refused(404, f"Invalid rev id: {revision}", "RevisionNotFound")

    def blob(self, name: str) -> Path:
        return self.folder / "blobs" / name

    def add(self, parent: Json, header: Json, operations: list[Json]) -> str:
        """Writes a commit, and blobs, that nothing names yet."""
        files: dict[str, Json] = dict(parent["files"])
        for key, value in [(operation["key"], operation["value"]) for operation in operations]:
            path: str = value["path"].rstrip("/")
            if {"", ".", "..", ".git"} & set(path.split("/")):
                raise Refused(400, f"Invalid path: {path}")
            if key == "file":
                data = base64.b64decode(value["content"])
                files[path] = {"oid": git_hash(data), "name": git_hash(data), "size": len(data)}
                if not self.blob(git_hash(data)).exists():
                    self.hub.write(self.blob(git_hash(data)), data)
            elif key == "lfsFile":
                if not self.blob(value["oid"]).exists():
                    raise Refused(400, f"LFS pointer pointed to a file that does not exist: {path}")
                size = self.blob(value["oid"]).stat().st_size
                pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{value['oid']}\nsize {size}\n"
                lfs = {"oid": value["oid"], "size": size, "pointerSize": len(pointer)}
                files[path] = {"oid": git_hash(pointer.encode()), "name": value["oid"], "size": size, "lfs": lfs}
            else:
                gone = {one for one in files if one == path or (key != "deletedFile" and one.startswith(path + "/"))}
                if not gone:
                    raise Refused(404, "A file with this name doesn't exist", "EntryNotFound")
                files = {one: file for one, file in files.items() if one not in gone}
        listing = sorted((path, file["oid"]) for path, file in files.items())
        title, message = header["summary"], header.get("description") or ""
        sha = hashlib.sha1(json.dumps([listing, parent["id"], title, message]).encode()).hexdigest()
        for file in files.values():
            file.setdefault("lastCommit", {"id": sha, "title": title, "date": now()})
        commit = {"id": sha, "parent": parent["id"], "title": title, "message": message, "date": now(), "files": files}
        self.hub.write(self.folder / "commits" / sha, json.dumps(commit).encode())
        return sha

    def create(self, settings: Json) -> None:
        """Makes the whole repo beside and renames it."""
        final, self.folder = self.folder, self.hub.beside()
        rules = {"path": ".gitattributes", "content": base64.b64encode(b"*.safetensors filter=lfs\n").decode()}
        sha = self.add({"id": None, "files": {}}, {"summary": "initial commit"}, [{"key": "file", "value": rules}])
        private = bool(settings.get("private")) or settings.get("visibility") == "private"
        refs = {"branches": {"main": sha}, "tags": {}}
        self.keep({"id": self.id, "private": private, "created": now(), "sdk": settings.get("sdk"), **refs})
        final.parent.mkdir(parents=True, exist_ok=True)
        os.rename(self.folder, final)

    def delete(self) -> None:
        self.state()
        beside = self.hub.beside()
        os.rename(self.folder, beside)
        shutil.rmtree(beside)

    def commit(self, branch: str, header: Json, operations: list[Json]) -> str:
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

    def tag(self, name: str, revision: str | None) -> None:
        """Sets a new tag, or deletes it if there is no revision."""
        with self.hub.lock:
            state = self.state()
            if revision is None and state["tags"].pop(name, None) is None:
                raise Refused(404, f"Invalid rev id: {name}", "RevisionNotFound")
            if revision is not None:
                commit = self.at(revision)["id"]
                if name in state["tags"]:
                    raise Refused(409, f"Tag reference exists already: {name}")
                state["tags"][name] = commit
            self.keep(state)

    def info(self, revision: str, blobs: bool, expand: list[str] | None) -> Json:
        state, commit = self.state(), self.at(revision)
        fields = {"sha": commit["id"], "author": self.id.split("/")[0], "lastModified": commit["date"]}
        fields |= {"createdAt": state["created"], "private": state["private"], "gated": False, "disabled": False}
        fields |= {"downloads": 0, "likes": 0, "tags": [], "siblings": []}
        for path, file in commit["files"].items():
            fields["siblings"].append({"rfilename": path})
            if blobs:
                lfs = {"lfs": {**file["lfs"], "sha256": file["name"]}} if "lfs" in file else {}
                fields["siblings"][-1] |= {"blobId": file["oid"], "size": file["size"], **lfs}
        if self.kind == "spaces":
            fields |= {"sdk": state["sdk"], "runtime": self.runtime()}
        fields = {key: value for key, value in fields.items() if not expand or key in expand}
        return {"_id": hashlib.sha1(self.id.encode()).hexdigest()[:24], "id": self.id, **fields}

    def tree(self, revision: str, expand: bool) -> dict[str, Json]:
        """Every file and every folder by its path."""
        files, found = self.at(revision)["files"], {}
        for path, file in sorted(files.items()):
            for above in map(str, list(Path(path).parents)[-2::-1]):
                inside = [(one, other["oid"]) for one, other in files.items() if one.startswith(above + "/")]
                oid = hashlib.sha1(json.dumps(inside).encode()).hexdigest()
                found[above] = {"type": "directory", "oid": oid, "size": 0, "path": above}
            hidden = {"name"} if expand else {"name", "lastCommit"}
            found[path] = {"type": "file", "path": path} | {key: file[key] for key in file if key not in hidden}
        return found

    def runtime(self) -> Json:
        stage = self.folder / "stage"
        hardware = {"current": "cpu-basic", "requested": "cpu-basic"}
        return {"stage": stage.read_text().strip() if stage.exists() else "RUNNING", "hardware": hardware}


def git_hash(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class Answer(BaseHTTPRequestHandler):
    """One connection."""

    server: Hub  # type: ignore[assignment]
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = 2**16

    def do_any(self) -> None:
        target = urlsplit(self.path)
        self.query = {key: values[-1] for key, values in parse_qs(target.query).items()}
        self.expand = parse_qs(target.query).get("expand")
        self.parts = [unquote(part) for part in target.path.strip("/").split("/")]
        self.where = "/" + "/".join(self.parts)
        self.body = self.incoming()
        try:
            fault = self.server.fault(f"{self.command} {self.where}")
            do, length = fault.get("do"), int(self.headers.get("Content-Length") or 0)
            if do == "cut" and length and not fault.get("done"):
                self.rfile.read(length // 2)
                return self.note("cut")
            reply = self.carry_out() if do in (None, "cut") or fault.get("done") else Reply()
            for _ in self.body:
                pass  # what was not looked at
            if do == "hang":
                self.note("hang")
                self.rfile.read(1)  # until the client goes away
            elif do in WORDS:
                status = 403 if do == "quota" else int(fault["do"])
                headers = {"Retry-After": str(fault.get("retry_after", 1))} if do == 429 else {}
                self.answer(Refused(status, WORDS[do], **fault.get("headers", headers)).reply, False)
            elif do in (None, "cut"):
                self.answer(reply, do == "cut")
            else:
                raise ValueError(f"no such fault: {do}")
        except ConnectionError:
            self.close_connection = True

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = do_any

    def note(self, status: int | str) -> None:
        line = {"method": self.command, "path": self.where, "status": status}
        os.write(self.server.log, json.dumps(line).encode() + b"\n")
        self.close_connection |= isinstance(status, str)

    def incoming(self) -> Iterator[bytes]:
        """The request's body. Raises ConnectionError if it ends early."""
        chunked = "chunked" in self.headers.get("Transfer-Encoding", "")
        left = int(self.rfile.readline(), 16) if chunked else int(self.headers.get("Content-Length") or 0)
        while left:
            data = self.rfile.read(min(left, 2**18))
            if not data:
                self.note("gone")
                raise ConnectionResetError("half a body")
            yield data
            left -= len(data)
            if chunked and not left:
                self.rfile.readline()
                left = int(self.rfile.readline() or b"0", 16)
        if chunked:
            self.rfile.readline()

    def json_body(self) -> Any:
        return json.loads(b"".join(self.body))

    def carry_out(self) -> Reply:
        try:
            self.token = self.headers.get("Authorization", "").removeprefix("Bearer ").partition("-")[0]
            if self.token == "bad":
                raise Refused(401, WORDS[401])
            return self.route()
        except Refused as refused:
            return refused.reply
        except (ValueError, KeyError, TypeError) as error:
            traceback.print_exc()
            return Refused(400, f"Bad request: {error!r}").reply

    def answer(self, reply: Reply, cut: bool) -> None:
        data = b"" if reply.body is None else json.dumps(reply.body).encode()
        path, first, count = reply.part or (None, 0, len(data))
        kind = "application/octet-stream" if path else "application/json"
        headers = {"Content-Type": kind, "Content-Length": count, **reply.headers}
        status = f"HTTP/1.1 {reply.status} {HTTPStatus(reply.status).phrase}"
        head = "\r\n".join([status, *(f"{key}: {value}" for key, value in headers.items()), "", ""]).encode()
        count = 0 if self.command == "HEAD" else count
        if cut:
            head, count = (head, count // 2) if count else (head[: len(head) // 2], 0)
        self.note("cut" if cut else reply.status)
        self.wfile.write(head)
        if path and count:
            self.wfile.flush()
            with path.open("rb") as file:
                self.connection.sendfile(file, first, count)
        else:
            self.wfile.write(data[:count])

    def may_write(self, words: str = WORDS[403]) -> None:
        if not self.token:
            raise Refused(401, "Invalid username or password.")
        if self.token == "read":
            raise Refused(403, words)

    def open(self, kind: str, owner: str, name: str) -> Repo:
        repo = Repo(self.server, kind, owner, name)
        if not self.token and (not repo.folder.exists() or repo.state()["private"]):
            raise Refused(401, "Invalid username or password.", "RepoNotFound")
        repo.state()
        return repo

    def collection(self, asked: Json) -> Reply:
        """Makes a collection; a second one of its title is refused with the first one's slug, as the Hub does it."""
        self.may_write("You don't have the rights to create a collection under this namespace")
        title = re.sub(r"[^a-z0-9]+", "-", asked["title"].lower())
        slug = f"{asked['namespace']}/{title}-{hashlib.sha1(title.encode()).hexdigest()[:24]}"
        file = self.server.collection(slug)
        with self.server.lock:
            if file.exists():
                return Reply({"error": "You already have this collection", "slug": slug}, 409)
            about = {"slug": slug, "owner": {"name": asked["namespace"]}, "items": [], "position": 0, "theme": "green"}
            about |= {"lastUpdated": now(), "upvotes": 0, "title": asked["title"], "private": asked["private"]}
            self.server.write(file, json.dumps(about).encode())
        return Reply(about)

    def collect(self, file: Path, item: Json) -> Reply:
        self.may_write()
        self.open(f"{item['type']}s", *item["id"].split("/"))
        with self.server.lock:
            collection = json.loads(file.read_text())
            if any((each["id"], each["type"]) == (item["id"], item["type"]) for each in collection["items"]):
                return Reply({"error": "It is in the collection already"}, 409)
            place = len(collection["items"])
            collection["items"].append(item | {"_id": f"{place:024x}", "position": place})
            self.server.write(file, json.dumps(collection).encode())
        return Reply(collection)

    def route(self) -> Reply:
        base = f"http://{self.headers['Host']}"
        match [self.command, *self.parts]:
            case ["GET", "api", "whoami-v2"]:
                if not self.token:
                    raise Refused(401, "Invalid username or password.")
                token = {"displayName": "test", "role": "read" if self.token == "read" else "write"}
                auth = {"type": "access_token", "accessToken": token}
                return Reply({"type": "user", "id": USER, "name": USER, "fullname": USER, "orgs": [], "auth": auth})
            case ["POST", "api", "validate-yaml"]:
                return Reply({"errors": [], "warnings": []})
            case ["POST" | "DELETE", "api", "repos", ("create" | "delete") as do]:
                settings = self.json_body()
                kind = settings.get("type") or "model"
                self.may_write(f"You don't have the rights to create a {kind} under this namespace")
                repo = Repo(self.server, f"{kind}s", settings.get("organization") or USER, settings["name"])
                info = {"url": f"{base}/{repo.path}", "name": repo.id, "id": repo.id}
                with self.server.lock:
                    if do == "delete":
                        repo.delete()
                    elif repo.folder.exists():
                        return Reply({"error": f"You already created this {kind} repo", **info}, 409)
                    else:
                        repo.create(settings)
                return Reply(info)
            case ["POST", "api", "collections"]:
                return self.collection(self.json_body())
            case ["GET", "api", "collections", owner, name]:
                return Reply(json.loads(self.server.collection(f"{owner}/{name}").read_text()))
            case ["POST", "api", "collections", owner, name, "items"]:
                return self.collect(self.server.collection(f"{owner}/{name}"), self.json_body()["item"])
            case ["GET", "api", kind] if kind in PREFIXES:
                files = (self.server.folder / "repos" / kind).glob(f"{self.query.get('author', '*')}/*/repo.json")
                repos = [Repo(self.server, kind, *file.parts[-3:-1]) for file in sorted(files)]
                shown = [repo for repo in repos if self.token or not repo.state()["private"]]
                return Reply([repo.info("main", False, self.expand) for repo in shown])
            case [method, "api", kind, owner, name, *rest] if kind in PREFIXES:
                return self.api(self.open(kind, owner, name), [method, *rest], base)
            case ["POST", *kind, owner, name, "info", "lfs", "objects", "batch"]:
                self.may_write()
                repo = self.open("/".join(kind) or "models", owner, name.removesuffix(".git"))
                objects = [{"oid": one["oid"], "size": one["size"]} for one in self.json_body()["objects"]]
                for one in objects:
                    if not repo.blob(one["oid"]).exists():
                        href = f"{base}/lfs/{repo.kind}/{repo.id}/{one['oid']}"
                        parts = {str(n): f"{href}/part/{n}" for n in range(1, -(-one["size"] // PART) + 1)}
                        header = {"chunk_size": str(PART), **parts} if len(parts) > 1 else {}
                        upload = {"href": href, "header": header}
                        one["actions"] = {"upload": upload, "verify": {"href": f"{href}/verify"}}
                return Reply({"transfer": "basic", "objects": objects})
            case ["PUT", "lfs", kind, owner, name, oid]:  # comes without a token
                return self.store(Repo(self.server, kind, owner, name), oid)
            case ["PUT", "lfs", kind, owner, name, oid, "part", number]:
                part = Repo(self.server, kind, owner, name).blob(f"{oid}.{number}")
                self.server.write(part, b"".join(self.body))
                return Reply(headers={"ETag": f'"{part.name}"'})
            case ["POST", "lfs", kind, owner, name, oid]:  # all parts are there
                repo, parts = Repo(self.server, kind, owner, name), self.json_body()["parts"]
                if [f'"{oid}.{one["partNumber"]}"' for one in parts] != [one["etag"] for one in parts]:
                    raise Refused(400, "One or more of the specified parts could not be found")
                files = [repo.blob(f"{oid}.{one['partNumber']}") for one in parts]
                self.body = (file.read_bytes() for file in files)
                stored = self.store(repo, oid)
                for file in files:
                    file.unlink()
                return stored
            case ["POST", "lfs", kind, owner, name, oid, "verify"]:
                blob = Repo(self.server, kind, owner, name).blob(oid)
                if not blob.exists() or blob.stat().st_size != self.json_body()["size"]:
                    raise Refused(404, "Object does not exist on the server")
                return Reply({})
            case ["GET" | "HEAD", ("datasets" | "spaces") as kind, owner, name, "resolve", revision, *path]:
                return self.file(self.open(kind, owner, name), revision, "/".join(path))
            case ["GET" | "HEAD", owner, name, "resolve", revision, *path]:
                return self.file(self.open("models", owner, name), revision, "/".join(path))
        raise Refused(404, f"Sorry, we can't find the page you are looking for: {self.command} {self.where}")

    def api(self, repo: Repo, parts: list[str], base: str) -> Reply:
        if parts[0] != "GET" and parts[1:2] != ["paths-info"]:
            self.may_write()
        flags = {key for key, value in self.query.items() if value.lower() in ("true", "1")}
        match parts:
            case ["GET"]:
                return Reply(repo.info("main", "blobs" in flags, self.expand))
            case ["GET", "revision", revision]:
                return Reply(repo.info(revision, "blobs" in flags, self.expand))
            case ["POST", "preupload", revision]:
                files, listing = repo.at(revision)["files"], []
                for one in self.json_body()["files"]:
                    mode = "lfs" if one["size"] > 10 * 2**20 or LARGE.fullmatch(one["path"]) else "regular"
                    old = {"oid": files[one["path"]]["name"]} if one["path"] in files else {}
                    listing.append({"path": one["path"], "uploadMode": mode, "shouldIgnore": False, **old})
                return Reply({"files": listing})
            case ["POST", "commit", branch] if "create_pr" not in flags:
                header, *operations = [json.loads(line) for line in b"".join(self.body).splitlines() if line]
                sha = repo.commit(branch, header["value"], operations)
                return Reply({"success": True, "commitOid": sha, "commitUrl": f"{base}/{repo.path}/commit/{sha}"})
            case ["GET", "commits", revision]:
                commits = [repo.at(revision)]
                while commits[-1]["parent"]:
                    commits.append(repo.at(commits[-1]["parent"]))
                return Reply([{**commit, "files": [], "authors": [{"user": USER}]} for commit in commits])
            case ["GET", "tree", revision, *path]:
                start = "/".join([*path, ""])
                tree = repo.tree(revision, "expand" in flags).items()
                found = {path.removeprefix(start): entry for path, entry in tree if path.startswith(start)}
                if start and not found:
                    raise Refused(404, f"{start[:-1]} does not exist on {revision}", "EntryNotFound")
                return Reply([entry for path, entry in found.items() if "recursive" in flags or "/" not in path])
            case ["POST", "paths-info", revision]:
                form = parse_qs(b"".join(self.body).decode())
                tree = repo.tree(revision, form.get("expand") == ["true"])
                return Reply([tree[path] for path in form.get("paths", []) if path in tree])
            case ["GET", "refs"]:
                state, listing = repo.state(), {"converts": [], "pullRequests": []}
                for kind, under in (("branches", "heads"), ("tags", "tags")):
                    refs = state[kind].items()
                    listing[kind] = [
                        {"name": one, "ref": f"refs/{under}/{one}", "targetCommit": sha} for one, sha in refs
                    ]
                return Reply(listing)
            case ["POST", "tag", revision]:
                repo.tag(self.json_body()["tag"], revision)
                return Reply()
            case ["DELETE", "tag", name]:
                repo.tag(name, None)
                return Reply()
            case ["POST", "variables"]:  # of a Space
                state, variable = repo.state(), self.json_body()
                state["variables"] = state.get("variables", {}) | {variable["key"]: {"value": variable["value"]}}
                repo.keep(state)
                return Reply(state["variables"])
            case ["GET", "variables"]:
                return Reply(repo.state().get("variables", {}))
            case ["GET", "runtime"]:
                return Reply(repo.runtime())
            case ["POST", "restart"]:
                self.server.write(repo.folder / "stage", b"RUNNING")
                return Reply(repo.runtime())
        raise Refused(404, f"Sorry, we can't find the page you are looking for: {self.command} {self.where}")

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
            os.replace(beside, repo.blob(oid))
        finally:
            beside.unlink(missing_ok=True)
        return Reply()

    def file(self, repo: Repo, revision: str, path: str) -> Reply:
        commit = repo.at(revision)
        if path not in commit["files"]:
            raise Refused(404, "Entry not found", "EntryNotFound", **{"X-Repo-Commit": commit["id"]})
        file = commit["files"][path]
        size, etag, blob = file["size"], f'"{file["name"]}"', repo.blob(file["name"])
        headers = {"ETag": etag, "X-Repo-Commit": commit["id"], "Accept-Ranges": "bytes"}
        headers |= {"X-Linked-Size": str(size), "X-Linked-Etag": etag} if "lfs" in file else {}
        byte_range = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", ""))
        if not byte_range:
            return Reply(headers=headers, part=(blob, 0, size))
        first, last = byte_range.groups()
        start = int(first) if first else max(0, size - int(last))
        end = min(size, int(last) + 1) if first and last else size
        if start >= end:
            raise Refused(416, "Range not satisfiable", **{"Content-Range": f"bytes */{size}"})
        headers["Content-Range"] = f"bytes {start}-{end - 1}/{size}"
        return Reply(status=206, headers=headers, part=(blob, start, end - start))


class LocalHub:
    """The server as a child process, for tests that kill it, start it again on its port and make it fail."""

    def __init__(self, folder: Path):
        self.folder, self.port = folder, 0
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-m", "tests.hub_server", str(self.folder), "--port", str(self.port)]
        root, pipe = Path(__file__).parent.parent, subprocess.PIPE
        self.process = subprocess.Popen(command, cwd=root, stdin=pipe, stdout=pipe, text=True, start_new_session=True)
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().strip()
        assert self.url, "the Hub ended at its start"
        self.port = int(self.url.rsplit(":", 1)[1])

    def kill(self) -> None:
        """Ends it with SIGKILL."""
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()

    def variables(self, cache: Path, token: str = "write") -> dict[str, str]:
        """What a process has in its environment before it imports huggingface_hub, datasets or transformers."""
        online = {"HF_HUB_OFFLINE": "0", "HF_DATASETS_OFFLINE": "0", "TRANSFORMERS_OFFLINE": "0"}
        client = {"HF_HOME": str(cache), "HF_TOKEN": token, "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
        return {"HF_ENDPOINT": self.url, "HF_HUB_DISABLE_XET": "1", **online, **client}

    def fail(self, *faults: Json) -> None:
        """From now on these faults and no others; see the top of this file."""
        beside = self.folder / "faults.beside"
        beside.write_text(json.dumps(faults))
        os.replace(beside, self.folder / "faults.json")

    def requests(self, match: str = "") -> list[str]:
        """What was asked so far, as "METHOD path status"; not that the client asks once a process who drives it."""
        lines = [json.loads(line) for line in (self.folder / "requests.jsonl").read_text().splitlines()]
        texts = ["{method} {path} {status}".format(**line) for line in lines]
        return [text for text in texts if "/api/agent-harnesses" not in text and re.search(match, text)]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--stay", action="store_true", help="do not end when standard input does")
    arguments = parser.parse_args()
    hub = Hub(arguments.folder, arguments.port)
    print(f"http://127.0.0.1:{hub.server_address[1]}", flush=True)
    threading.Thread(target=hub.serve_forever, daemon=True).start()
    if arguments.stay:
        threading.Event().wait()
    sys.stdin.read()


if __name__ == "__main__":
    main()
