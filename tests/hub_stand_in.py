"""A small stand-in for the hub's HTTP interface, for the real client: repositories in memory, a port of this machine.

What the client asks of the hub is answered in the hub's shapes: creation, branches, information, trees, preupload, LFS
batch, upload and verification, commits, and files with checksums, those of LFS by a redirect.
"""

import base64
import hashlib
import json
import re
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

import yaml

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
        self.repos, self.blobs, self.asked = {}, {}, []
        self.cut = None  # the end of a path whose download breaks off half-way
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": self}))
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self.storage = self.url.replace("127.0.0.1", "localhost")  # another host, as that of the hub's large files
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def close(self):
        self._server.shutdown()
        self._server.server_close()

    def add(self, name, files, *, private=False):
        """Put files (bytes by name) into a repository, made where it is not there; return the commit."""
        repo = self.repos.setdefault(name, Repo(private))
        return repo.commit("main", {**(repo.files() if repo.heads else {}), **files}, "added")


def is_large(name):
    """Return whether the hub keeps such a file as LFS."""
    return name.endswith(".safetensors")


def blob_id(content):
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


class _Handler(BaseHTTPRequestHandler):
    wbufsize = -1  # an answer in one piece: its head alone would wait for the client's acknowledgement
    protocol_version = "HTTP/1.1"
    hub: Hub

    def log_message(self, *given):
        pass

    def do_GET(self):
        self._answer()

    do_HEAD = do_POST = do_PUT = do_GET

    def _answer(self):
        self.body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path = urlsplit(self.path).path
        self.hub.asked.append(f"{self.command} {path}")
        for pattern, method in _ROUTES:
            if (found := re.fullmatch(pattern, path)) and self.command in method.split("_")[0].upper().split("OR"):
                return getattr(self, f"_{method}")(*map(unquote, found.groups()))
        return self._say(404, {"error": f"no route {self.command} {path}"})

    def _say(self, status, value=b"", **headers):
        content = value if isinstance(value, bytes) else json.dumps(value).encode()
        self.send_response(status)
        for name, text in headers.items():
            self.send_header(name.replace("_", "-"), text)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def _repo(self, name, *, write=False):
        """Return a repository that the request's token may use, or None after an answer that says why not."""
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        repo = self.hub.repos.get(name)
        if token not in ("", WRITER, READER):
            self._say(401, {"error": "wrong"}, X_Error_Message="Invalid credentials in Authorization header")
        elif repo is None or (repo.private and not token):
            self._say(404 if token else 401, {"error": "Repository not found"}, X_Error_Code="RepoNotFound")
        elif write and token != WRITER:
            self._say(403, {"error": "no right to write"}, X_Error_Message="no right to write")
        else:
            return repo
        return None

    def _post_validate(self):
        front = json.loads(self.body)["content"].split("---\n")[1]
        about = yaml.safe_load(front)
        wrong = [] if isinstance(about, dict) and about.get("tags") else [{"message": "no metadata"}]
        self._say(400 if wrong else 200, {"errors": wrong, "warnings": []})

    def _post_create(self):
        asked = json.loads(self.body)
        name = f"{asked['organization']}/{asked['name']}"
        if name in self.hub.repos:
            return self._say(409, {"error": "You already created this model repo", "url": f"{self.hub.url}/{name}"})
        if self.headers.get("Authorization") != f"Bearer {WRITER}":
            return self._say(403, {"error": "no right to write"})
        repo = self.hub.repos[name] = Repo(asked.get("visibility") == "private")
        repo.commit("main", {".gitattributes": b"*.safetensors filter=lfs diff=lfs merge=lfs -text\n"}, "initial")
        return self._say(200, {"url": f"{self.hub.url}/{name}", "name": name})

    def _post_branch(self, name, branch):
        if repo := self._repo(name, write=True):
            if branch in repo.heads:
                return self._say(409, {"error": "Reference already exists"})
            repo.heads[branch] = repo.heads["main"]
            self._say(200, {})
        return None

    def _get_info(self, name, revision=None):
        if repo := self._repo(name):
            sha = repo.sha(revision or "main")
            if sha is None:
                return self._say(404, {"error": "Invalid rev id"}, X_Error_Code="RevisionNotFound")
            siblings = [{"rfilename": file} for file in sorted(repo.commits[sha])]
            self._say(200, {"id": name, "modelId": name, "sha": sha, "private": repo.private, "siblings": siblings})
        return None

    def _get_tree(self, name, revision):
        if repo := self._repo(name):
            files = repo.commits[repo.sha(revision)]
            self._say(200, [_listed(file, content) for file, content in sorted(files.items())])

    def _post_preupload(self, name, revision):
        if repo := self._repo(name, write=True):
            files = repo.commits[repo.sha(revision)]
            told = []
            for asked in json.loads(self.body)["files"]:
                file = asked["path"]
                there = {"oid": _oid(file, files[file])} if file in files else {}
                mode = "lfs" if is_large(file) else "regular"
                told.append({"path": file, "uploadMode": mode, "shouldIgnore": False, **there})
            self._say(200, {"files": told})

    def _post_batch(self, name):
        if self._repo(name, write=True):
            objects = []
            for asked in json.loads(self.body)["objects"]:
                hrefs = {"upload": f"lfs/{asked['oid']}", "verify": "verify"}
                actions = {key: {"href": f"{self.hub.url}/{href}"} for key, href in hrefs.items()}
                known = asked["oid"] in self.hub.blobs
                objects.append({**asked, **({} if known else {"actions": actions})})
            self._say(200, {"transfer": "basic", "objects": objects})

    def _put_blob(self, oid):
        assert hashlib.sha256(self.body).hexdigest() == oid
        self.hub.blobs[oid] = self.body
        self._say(200)

    def _post_verify(self):
        asked = json.loads(self.body)
        content = self.hub.blobs.get(asked["oid"])
        self._say(200 if content is not None and len(content) == asked["size"] else 422, {})

    def _post_commit(self, name, revision):
        repo = self._repo(name, write=True)
        if repo is None:
            return None
        lines = [json.loads(line) for line in self.body.splitlines()]
        files = dict(repo.files(revision))
        for line in lines:
            about = line["value"]
            if line["key"] == "header" and about.get("parentCommit", repo.heads[revision]) != repo.heads[revision]:
                return self._say(412, {"error": "The branch has moved"})
            if line["key"] == "file":
                files[about["path"]] = base64.b64decode(about["content"])
            if line["key"] == "lfsFile":
                files[about["path"]] = self.hub.blobs[about["oid"]]
            if line["key"] == "deletedFile":
                del files[about["path"]]
        sha = repo.commit(revision, files, lines[0]["value"]["summary"])
        return self._say(200, {"commitUrl": f"{self.hub.url}/{name}/commit/{sha}", "commitOid": sha})

    def _getorhead_file(self, name, revision, file):
        repo = self._repo(name)
        if repo is None:
            return None
        sha = repo.sha(revision)
        content = repo.commits[sha].get(file)
        if content is None:
            return self._say(404, X_Error_Code="EntryNotFound")
        about = {"X_Repo_Commit": sha, "ETag": f'"{_oid(file, content)}"'}
        if is_large(file):
            self.hub.blobs[_oid(file, content)] = content
            linked = {"X_Linked_Etag": about["ETag"], "X_Linked_Size": str(len(content))}
            return self._say(302, Location=f"{self.hub.storage}/lfs/{_oid(file, content)}?of={file}", **about, **linked)
        return self._say(200, content, **about)

    def _getorhead_blob(self, oid):
        content = self.hub.blobs[oid]
        if self.hub.cut and self.path.endswith(self.hub.cut):
            if "Range" in self.headers:
                return self._say(503)
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content[: len(content) // 2])
            self.close_connection = True
            return None
        return self._say(200, content, ETag=f'"{oid}"')


def _oid(file, content):
    return hashlib.sha256(content).hexdigest() if is_large(file) else blob_id(content)


def _listed(file, content):
    about = {"type": "file", "path": file, "size": len(content), "oid": blob_id(content)}
    if is_large(file):
        about["lfs"] = {"oid": _oid(file, content), "size": len(content), "pointerSize": 130}
    return about


_NAMED = r"/api/models/([\w.-]+/[\w.-]+)"
#: Pattern of a path -> what answers it; the method's name begins with the HTTP methods that it takes.
_ROUTES = [
    (r"/api/validate-yaml", "post_validate"),
    (r"/api/repos/create", "post_create"),
    (_NAMED, "get_info"),
    (rf"{_NAMED}/revision/([^/]+)", "get_info"),
    (rf"{_NAMED}/tree/([^/]+)", "get_tree"),
    (rf"{_NAMED}/branch/([^/]+)", "post_branch"),
    (rf"{_NAMED}/preupload/([^/]+)", "post_preupload"),
    (rf"{_NAMED}/commit/([^/]+)", "post_commit"),
    (r"/([\w.-]+/[\w.-]+)\.git/info/lfs/objects/batch", "post_batch"),
    (r"/lfs/(\w+)", "put_blob"),
    (r"/lfs/(\w+)", "getorhead_blob"),
    (r"/verify", "post_verify"),
    (r"/([\w.-]+/[\w.-]+)/resolve/([^/]+)/(.+)", "getorhead_file"),
]
