"""A model to the Hugging Face hub and back: card, recipe, learned numbers, and the backbone where nobody else has it.

A repository is a folder of the one form (``saving``) with a README; ``promptcli.json`` names the other files with their
checksums. Where the client finds its endpoint and token is the caller's: both come in as an ``HfApi``.
"""

import contextlib
import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, get_token
from huggingface_hub.errors import RepositoryNotFoundError
from huggingface_hub.hf_api import RepoFile

from promptcli.backbones.backbone import OWN_TOKENIZER
from promptcli.backbones.checking import opening
from promptcli.encoder.encoder import TUNED, Encoder
from promptcli.errors import CheckFailedError, NotFoundError, PromptcliError, UsageError, one_line
from promptcli.models.card import write_card
from promptcli.models.entries import BACKBONE, CARD, MANIFEST, TENSORS, Entry, Manifest, read_manifest, write_manifest
from promptcli.models.export import open_whole
from promptcli.models.reading import read_folder
from promptcli.models.registry import Registry, load_encoder
from promptcli.models.saving import save_encoder
from promptcli.models.target import PROBES
from promptcli.notes import is_offline, note, offline
from promptcli.storage.documents import read_document
from promptcli.storage.files import scratch_folder, sha256

#: The files that such a repository has of ours; whatever else is in it is never fetched and never deleted.
_OURS = re.compile(
    rf"({CARD}|{MANIFEST}|modules\.json|config_sentence_transformers\.json"
    rf"|sentence_bert_config\.json|{TENSORS}|config\.json|model\.safetensors|tokenizer\.json|tokenizer_config\.json"
    rf"|special_tokens_map\.json|({BACKBONE}|{OWN_TOKENIZER}|\d_[A-Za-z]+)/\w[\w.-]*\.(json|txt|model|safetensors))",
    re.ASCII,
)
_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+", re.ASCII)
_LOGIN = "type `hf auth login`, or set HF_TOKEN"


@dataclass(frozen=True)
class Pushed:
    """What a repository has now."""

    repo: str
    url: str
    commit: str
    changed: bool  #: False: it had all of it before, and no commit was made
    fingerprint: str
    files: dict[str, int]  #: bytes by name
    backbone: str | None  #: its name on the hub; None where its files were sent

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready values."""
        return dict(vars(self))


@dataclass(frozen=True)
class Pulled:
    """An entry that came from a repository."""

    entry: Entry
    repo: str
    commit: str
    fingerprint: str

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready values."""
        about = {"repo": self.repo, "commit": self.commit, "fingerprint": self.fingerprint}
        return {"name": self.entry.name, **about, "recipe": self.entry.recipe.to_dict()}


def client() -> HfApi:
    """Return the hub's own client, with the endpoint and the token that it finds itself."""
    return HfApi(token=get_token())


def push(api: HfApi, entry: Entry, repo: str, *, private: bool = False, revision: str | None = None) -> Pushed:
    """Send a model to a repository of the hub in one commit; none where it has all of it already.

    A backbone of the hub is named by id and revision. Any other is sent, so that whoever pulls has the same one.
    What is sent was loaded again before and gave the same vectors, bit by bit. Repository and branch, by default the
    main one, are made where they are not there.

    Raises:
        UsageError: No token, or one that may not write; ``private`` and the repository is public.
        NotFoundError: The backbone is gone, or the hub cannot be reached.
    """
    _check_repo(repo)
    if is_offline():
        raise NotFoundError(f"push sends {entry.name!r} to the hub, which `offline` forbids")
    if not api.token:
        raise UsageError(f"push needs a token of the hub that may write: {_LOGIN}")
    with scratch_folder() as folder:
        fingerprint, backbone = _write(entry, repo, folder)
        files = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}
        if odd := [name for name in files if not _OURS.fullmatch(name)]:
            raise UsageError(f"file {odd[0]!r} of the backbone has a name that pull would not take; rename it")
        sizes = {name: path.stat().st_size for name, path in files.items()}
        shown = ", ".join(name for name in files if "/" not in name)
        weight = sum(size for name, size in sizes.items() if Path(name).name == "model.safetensors")
        what = f"the backbone {backbone} is named, not sent" if backbone else f"the backbone ({weight / 1e6:,.1f} MB)"
        note(f"sending {sum(sizes.values()) / 1e6:,.1f} MB to {api.endpoint}/{repo}: {shown}; {what}")
        message = f"{entry.name}: encoder {fingerprint[:12]}"
        with _asking(api, repo):
            commit, changed = _commit(api, repo, files, message, private=private, revision=revision)
    url = f"{api.endpoint}/{repo}" + (f"/tree/{revision}" if revision else "")
    return Pushed(repo, url, commit, changed, fingerprint, sizes, backbone)


def _write(entry: Entry, repo: str, folder: Path) -> tuple[str, str | None]:
    """Fill a folder with a repository's files; return the fingerprint, and the name of a backbone that is not in it."""
    encoder = open_whole(entry)
    source = encoder.backbone.provenance
    backbone = f"{source.backbone.partition('@')[0]}@{source.revision}" if source.revision else None
    about = {**entry.provenance, **encoder.provenance, "backbone": backbone or BACKBONE, "width": encoder.width}
    about.pop("pulled", None)  # so that what was pulled from here is the same
    vectors = encoder.encode(PROBES)
    name = repo.partition("/")[2]
    save_encoder(replace(entry, name=name, provenance=about), encoder, folder, backbone=backbone)
    del encoder  # there may not be room for two
    with offline():
        again = load_encoder(read_folder(str(folder), folder), device="cpu", dtype="float32")
    if not np.array_equal(again.encode(PROBES), vectors):
        raise CheckFailedError(f"model {entry.name!r} gives other vectors after it was written; nothing was sent")
    manifest = replace(read_manifest(folder), fingerprint=again.fingerprint, created="")
    write_manifest(folder, manifest)
    use = f'import promptcli as pc\n\nvectors = pc.load("{repo}").encode(sentences)'
    tuned = any(tensor.startswith(TUNED) for tensor in entry.tensors)
    placed = again.recipe.replace(backbone=backbone or f"./{BACKBONE}")
    relation = ("finetune" if tuned else "adapter") if entry.tensors else None
    write_card(folder, replace(entry, name=name), placed, use=use, library="promptcli", relation=relation)
    return again.fingerprint, backbone


def _commit(
    api: HfApi, repo: str, files: dict[str, Path], message: str, *, private: bool, revision: str | None
) -> tuple[str, bool]:
    """Make a repository's files of ours these; return its last commit, and whether that is a new one."""
    api.create_repo(repo, private=private or None, exist_ok=True)
    if private and not api.model_info(repo).private:
        raise UsageError(f"{repo} is there and public; nothing was sent; push without `private`, or to another name")
    if revision is not None:
        api.create_branch(repo, branch=revision, exist_ok=True)
    head = api.model_info(repo, revision=revision).sha
    there = {file.path: file for file in api.list_repo_tree(repo, recursive=True, revision=head)}
    operations = [
        CommitOperationAdd(name, path) for name, path in files.items() if not _is_same(there.get(name), path)
    ] + [CommitOperationDelete(name) for name in there if _OURS.fullmatch(name) and name not in files]
    if head is not None and not operations:
        return head, False
    made = api.create_commit(repo, operations, commit_message=message, revision=revision, parent_commit=head)
    return made.oid, True


def _is_same(file: Any, path: Path) -> bool:
    """Return whether a file of a repository has a local file's content, by the checksum that the hub keeps of it."""
    if not isinstance(file, RepoFile) or file.size != path.stat().st_size:
        return False
    if file.lfs is not None:
        return file.lfs.sha256 == sha256(path)
    content = path.read_bytes()
    return bool(file.blob_id == hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest())


def pull(
    api: HfApi, registry: Registry, repo: str, name: str, *, revision: str | None = None, force: bool = False
) -> Pulled:
    """Save a model that was pushed as an entry of the registry: the same encoder, by its fingerprint.

    JSON, text and safetensors are read, and nothing is run. Where it ends early nothing is left. The revision is a
    branch, tag or commit, by default the main branch; a backbone that comes with the model is kept next to the entry.

    Raises:
        UsageError: The name is taken, or nobody pushed a model there.
        NotFoundError: No such repository or revision, or the hub cannot be reached.
        CheckFailedError: A file is not the one that was pushed, or the encoder has another fingerprint.
    """
    _check_repo(repo)
    registry.check_free(name, force=force)
    if is_offline():
        raise NotFoundError(f"pull fetches {repo} from the hub, which `offline` forbids")
    with registry.new_folder() as above:
        folder = above / "model"
        note(f"fetching {repo} from {api.endpoint}")
        with _asking(api, repo):
            commit, manifest = _fetch(api, repo, revision, folder)
        encoder = _open(repo, manifest, folder)
        entry = read_folder(str(folder), folder)
        pulled = {"repo": repo, "revision": commit}
        backbone = entry.recipe.backbone
        provenance = {**manifest.provenance, "pulled": pulled, "backbone": backbone}
        transfer = None if entry.transfer is None else entry.transfer.explicit()
        entry = replace(entry, name=name, provenance=provenance, recipe=encoder.recipe, transfer=transfer)
        inside = Path(backbone).is_relative_to(folder)
        if backbone == str(folder):  # all of it is the backbone; what is the entry's own stands in the entry
            (folder / TENSORS).unlink(missing_ok=True)
        entry = registry.save(entry, force=force, backbone=Path(backbone) if inside else None)
    return Pulled(entry, repo, commit, encoder.fingerprint)


def _fetch(api: HfApi, repo: str, revision: str | None, folder: Path) -> tuple[str, Manifest]:
    """Download what was pushed into a folder; return the commit, and the document, by which every file was checked."""
    info = api.model_info(repo, revision=revision)
    if info.sha is None or MANIFEST not in [file.rfilename for file in info.siblings or ()]:
        raise UsageError(
            f"{repo} was not pushed by promptcli; for other models: `model` {repo}, or"
            f" `promptcli models import {repo} --name NAME`"
        )

    def download(name: str) -> Path:  # by way of a folder that the client may keep notes in
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        fetched = api.hf_hub_download(repo, name, revision=info.sha, local_dir=folder.with_name("fetched"))
        return Path(fetched).rename(folder / name)

    hint = "push it again"
    document = read_document(download(MANIFEST), Manifest, hint=hint)
    for name, file in document.files.items():
        if not _OURS.fullmatch(name):
            raise CheckFailedError(f"{repo}: {MANIFEST} names {name!r}, which no model of promptcli has; {hint}")
        if sha256(download(name)) != file.sha256:
            raise CheckFailedError(f"{repo}: {name} is not the file that was pushed; {hint}")
    return info.sha, document


def _open(repo: str, manifest: Manifest, folder: Path) -> Encoder:
    """Return the encoder of the files that were fetched.

    Raises:
        CheckFailedError: It is not the one that was pushed.
    """
    with opening(f"model {repo}"):
        encoder = load_encoder(read_folder(str(folder), folder), device="cpu", dtype="float32")
        encoder.encode(PROBES[:2])
    if encoder.fingerprint != manifest.fingerprint:
        raise CheckFailedError(
            f"{repo} has another encoder than was pushed (fingerprint {encoder.fingerprint[:12]}, pushed by promptcli"
            f" {manifest.promptcli} as {str(manifest.fingerprint)[:12]}); nothing was saved"
        )
    return encoder


def _check_repo(repo: str) -> None:
    if not _NAME.fullmatch(repo):
        raise UsageError(f"{repo!r} is no repository of the hub; give OWNER/NAME, and a branch or commit by `revision`")


@contextlib.contextmanager
def _asking(api: HfApi, repo: str) -> Iterator[None]:
    """Turn what the client raises into one line."""
    try:
        yield
    except PromptcliError:
        raise
    except Exception as error:  # the client, its HTTP library and its storage library have classes of their own
        status = getattr(getattr(error, "response", None), "status_code", None)
        if status == 403:
            raise UsageError(f"the token of the hub may not do this with {repo}; with another one: {_LOGIN}") from None
        if status == 401 and not isinstance(error, RepositoryNotFoundError):
            raise UsageError(f"the hub does not know this token: {_LOGIN}") from None
        if status in (401, 404):
            who = "this token may see" if api.token else f"is public; for private ones {_LOGIN}"
            raise NotFoundError(f"the hub has no {repo} of that revision that {who}") from None
        if status in (409, 412):
            raise PromptcliError(f"{repo} was changed by somebody else meanwhile; push again") from None
        reason = one_line(error, 160)
        raise NotFoundError(f"{repo}: the hub did not do it: {type(error).__name__}: {reason}") from None
