"""A small hub for the real client: repositories in memory, served on a port of this machine.

It answers in the hub's shapes: creation, branches, information, trees, preupload, commits, and
files with checksums. All files are sent in the commit, none by LFS.
"""

import base64
import hashlib
import json
import re
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

WRITER, READER = "hf_writer", "hf_reader"  # tokens


@dataclass
class Repo:
    """A repository: every commit is all its files by name, a branch the name of a commit."""

    private: bool
    commits: dict = field(default_factory=dict)
    heads: dict = field(default_factory=dict)
    log: list = field(default_factory=list)

    def commit(self, branch, files, message):
        told = json.dumps([message, len(self.log), sorted(files)]).encode()
        sha = hashlib.sha1(told + b"".join(files[name] for name in sorted(files))).hexdigest()
        self.commits[sha] = dict(files)
        self.heads[branch] = sha
        self.log.append(message)
        return sha

    def sha(self, revision):
        return self.heads.get(revision) or (revision if revision in self.commits else None)

    def files(self, branch="main"):
        return self.commits[self.heads[branch]]


class Hub:
    """The server; ``repos`` may be read and changed by a test, ``asked`` lists the requests."""

    def __init__(self):
        self.repos, self.asked = {}, []
        self.cut = None  # the end of a path whose download breaks off half-way
        self._server = ThreadingHTTPServer(
            ("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": self})
        )
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
        ).start()

    def close(self):
        self._server.shutdown()
        self._server.server_close()

    def add(self, name, files, *, private=False):
        """Put files (bytes by name) into a new or existing repository; return the commit."""
        repo = self.repos.setdefault(name, Repo(private))
        return repo.commit("main", {**(repo.files() if repo.heads else {}), **files}, "added")


def blob_id(content):
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


class _Refused(Exception):
    """An answer other than 200: its status, content and headers."""


class _Handler(BaseHTTPRequestHandler):
    # an answer in one piece: its head alone would wait for the client's acknowledgement
    wbufsize = -1
    protocol_version = "HTTP/1.1"
    hub: Hub

    def log_message(self, *given):
        pass

    def do_GET(self):
        self.body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path = urlsplit(self.path).path
        self.hub.asked.append(f"{self.command} {path}")
        try:
            for commands, pattern, answer in _ROUTES:
                if (found := re.fullmatch(pattern, path)) and self.command in commands.split():
                    return self._say(
                        200, answer(self, *(unquote(part) for part in found.groups() if part))
                    )
            raise _Refused(404, {"error": f"no route {self.command} {path}"})
        except _Refused as refused:
            self._say(*refused.args)

    do_HEAD = do_POST = do_GET

    def _say(self, status, value, headers=()):
        value, headers = value if isinstance(value, tuple) else (value, headers)
        content = value if isinstance(value, bytes) else json.dumps(value).encode()
        self.send_response(status)
        for name, text in dict(headers).items():
            self.send_header(name, text)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            cut = status == 200 and self.hub.cut and self.path.endswith(self.hub.cut)
            self.wfile.write(content[: len(content) // 2] if cut else content)
            self.close_connection = bool(cut)

    def _repo(self, name, *, write=False):
        """Return a repository that the request's token may use."""
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        repo = self.hub.repos.get(name)
        if token not in ("", WRITER, READER):
            raise _Refused(
                401,
                {"error": ""},
                {"X-Error-Message": "Invalid credentials in Authorization header"},
            )
        if not write and (repo is None or (repo.private and not token)):
            raise _Refused(
                404 if token else 401, {"error": "not found"}, {"X-Error-Code": "RepoNotFound"}
            )
        if write and token != WRITER:
            raise _Refused(
                403, {"error": "no right to write"}, {"X-Error-Message": "no right to write"}
            )
        return repo

    def _create(self):
        asked = json.loads(self.body)
        name = f"{asked['organization']}/{asked['name']}"
        if name in self.hub.repos:
            raise _Refused(
                409,
                {"error": "You already created this model repo", "url": f"{self.hub.url}/{name}"},
            )
        self._repo(name, write=True)
        repo = self.hub.repos[name] = Repo(asked.get("visibility") == "private")
        repo.commit("main", {".gitattributes": b"\n"}, "initial")
        return {"url": f"{self.hub.url}/{name}", "name": name}

    def _branch(self, name, branch):
        heads = self._repo(name, write=True).heads
        heads[branch] = heads["main"]
        return {}

    def _info(self, name, revision="main"):
        repo = self._repo(name)
        sha = repo.sha(revision)
        if sha is None:
            raise _Refused(404, {"error": "Invalid rev id"}, {"X-Error-Code": "RevisionNotFound"})
        siblings = [{"rfilename": file} for file in sorted(repo.commits[sha])]
        return {
            "id": name,
            "modelId": name,
            "sha": sha,
            "private": repo.private,
            "siblings": siblings,
        }

    def _tree(self, name, revision):
        repo = self._repo(name)
        files = sorted(repo.commits[repo.sha(revision)].items())
        return [
            {"type": "file", "path": path, "size": len(it), "oid": blob_id(it)}
            for path, it in files
        ]

    def _preupload(self, name, revision):
        repo = self._repo(name, write=True)
        files = repo.commits[repo.sha(revision)]
        told = []
        for path in (asked["path"] for asked in json.loads(self.body)["files"]):
            there = {"oid": blob_id(files[path])} if path in files else {}
            told.append({"path": path, "uploadMode": "regular", "shouldIgnore": False, **there})
        return {"files": told}

    def _commit(self, name, revision):
        repo = self._repo(name, write=True)
        header, *lines = [json.loads(line) for line in self.body.splitlines()]
        files = dict(repo.files(revision))
        for line in lines:
            path = line["value"]["path"]
            if line["key"] == "deletedFile":
                del files[path]
            else:
                files[path] = base64.b64decode(line["value"]["content"])
        sha = repo.commit(revision, files, header["value"]["summary"])
        return {"commitUrl": f"{self.hub.url}/{name}/commit/{sha}", "commitOid": sha}

    def _file(self, name, revision, file):
        repo = self._repo(name)
        sha = repo.sha(revision)
        if file not in repo.commits[sha]:
            raise _Refused(404, b"", {"X-Error-Code": "EntryNotFound"})
        if self.hub.cut and "Range" in self.headers:
            raise _Refused(503, b"")
        content = repo.commits[sha][file]
        return content, {"X-Repo-Commit": sha, "ETag": f'"{blob_id(content)}"'}


_NAMED = r"/api/models/([\w.-]+/[\w.-]+)"
_ROUTES = [
    ("POST", r"/api/validate-yaml", lambda handler: {"errors": [], "warnings": []}),
    ("POST", r"/api/repos/create", _Handler._create),
    ("GET", rf"{_NAMED}(?:/revision/([^/]+))?", _Handler._info),
    ("GET", rf"{_NAMED}/tree/([^/]+)", _Handler._tree),
    ("POST", rf"{_NAMED}/branch/([^/]+)", _Handler._branch),
    ("POST", rf"{_NAMED}/preupload/([^/]+)", _Handler._preupload),
    ("POST", rf"{_NAMED}/commit/([^/]+)", _Handler._commit),
    ("GET HEAD", r"/([\w.-]+/[\w.-]+)/resolve/([^/]+)/(.+)", _Handler._file),
]
