"""Push models to the Hugging Face hub and pull them back.

A repository is an encoder's folder (``entries``) with a card.
"""

import contextlib
import logging
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from huggingface_hub import HfApi, get_token
from huggingface_hub.utils.tqdm import (
    are_progress_bars_disabled,
    disable_progress_bars,
    enable_progress_bars,
)

from promptcli.backbones.model_folder import (
    CONFIG,
    OWN_TOKENIZER,
    TOKENIZER,
    TOKENIZER_CONFIG,
    WEIGHTS,
    ModelFolder,
)
from promptcli.backbones.transformers_loading import opening
from promptcli.errors import CheckFailedError, NotFoundError, PromptcliError, UsageError, join_lines
from promptcli.models.card import write_card
from promptcli.models.entries import (
    BACKBONE,
    CARD,
    MODEL_MANIFEST,
    MODULES,
    TENSORS,
    Entry,
    read_manifest,
)
from promptcli.models.foreign_formats import MODEL_SETTINGS, MODULE_SETTINGS, read_model
from promptcli.models.loading import Model, entry_from_encoder, open_registry, resolve_entry
from promptcli.models.saving import open_exact, save_encoder
from promptcli.notes import is_offline, note, shows_bars
from promptcli.storage.files import list_files, temporary_folder

#: The files that promptcli writes to a repository. It never fetches or deletes other files.
_FILES = {CARD, MODEL_MANIFEST, MODULES, MODEL_SETTINGS, MODULE_SETTINGS, TENSORS, CONFIG, WEIGHTS}
_FILES |= {TOKENIZER, TOKENIZER_CONFIG, "special_tokens_map.json"}
_FILE_OF_FOLDER = re.compile(
    rf"({BACKBONE}|{OWN_TOKENIZER}|\d_[A-Za-z]+)/\w[\w.-]*\.(json|txt|model|safetensors)", re.ASCII
)
_REPO = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+", re.ASCII)
_LOGIN = "type `hf auth login`, or set HF_TOKEN"


@dataclass(frozen=True)
class Pushed:
    """The state of a repository after ``push``."""

    repo: str
    url: str
    commit: str
    changed: bool  #: False: the repository already had all files, and no commit was made
    fingerprint: str
    files: dict[str, int]  #: bytes by name
    backbone: str | None  #: the backbone's name on the hub; None if its files were sent


def _is_ours(name: str) -> bool:
    """Return whether a file of a repository is one that promptcli writes."""
    return name in _FILES or _FILE_OF_FOLDER.fullmatch(name) is not None


def client() -> HfApi:
    """Return the hub's client, with the endpoint and the token of the environment."""
    return HfApi(token=get_token())


def push(encoder: Model, repo: str, *, private: bool = False) -> Pushed:
    """Send a model to the Hugging Face hub in one commit: card, recipe, learned tensors.

    A backbone from the hub is named by id and revision; any other is sent as well. Sending the same
    model again makes no new commit; a changed model replaces the files of the last push, and other
    files in the repository stay. The token comes from ``hf auth login`` or $HF_TOKEN.

    Args:
        encoder: An encoder, or what ``load`` takes.
        repo: Repository of the hub, OWNER/NAME; it is created if it is missing.
        private: Create the repository as private.

    Raises:
        UsageError: There is no token, or the token may not write there.
        NotFoundError: The hub cannot be reached.
    """
    api = client()
    entry = resolve_entry(encoder)
    _check_repo(repo, "push")
    if not api.token:
        raise UsageError(f"push needs a token of the hub that may write: {_LOGIN}")
    with temporary_folder() as folder:
        fingerprint, backbone = _write(entry, repo, folder)
        sizes = {name: file.size for name, file in list_files(folder).items()}
        for name in sizes:
            if not _is_ours(name):
                raise UsageError(f"pull would refuse the file name {name!r}; rename it")
        omitted = f"; the backbone {backbone} is named, not sent" if backbone else ""
        note(
            f"sending {sum(sizes.values()) / 1e6:,.1f} MB to {api.endpoint}/{repo}:"
            f" {', '.join(sizes)}{omitted}"
        )
        with _hub_errors(repo):
            api.create_repo(repo, private=private or None, exist_ok=True)
            before = api.model_info(repo)
            if private and not before.private:
                raise UsageError(
                    f"{repo} exists and is public; nothing was sent; push to another name"
                )
            files = [file.rfilename for file in before.siblings or ()]
            commit = api.upload_folder(
                repo_id=repo,
                folder_path=folder,
                commit_message=f"{entry.name}: encoder {fingerprint[:12]}",
                delete_patterns=list(filter(_is_ours, files)),
            )
    url = f"{api.endpoint}/{repo}"
    return Pushed(repo, url, commit.oid, commit.oid != before.sha, fingerprint, sizes, backbone)


def _write(entry: Entry, repo: str, folder: Path) -> tuple[str, str | None]:
    """Fill a folder with a repository's files; return the encoder's fingerprint, and its backbone's
    name on the hub (None: the backbone is in the folder).
    """
    encoder = open_exact(entry)
    source = encoder.backbone.provenance
    backbone = None
    if source.revision:
        backbone = f"{source.backbone.partition('@')[0]}@{source.revision}"
    provenance = {**entry.provenance, **entry_from_encoder(encoder).provenance}
    provenance["backbone"] = backbone or BACKBONE
    provenance.pop("pulled", None)  # a pulled entry stays the same when it is pushed again
    entry = replace(entry, name=repo.partition("/")[2], provenance=provenance)
    save_encoder(entry, encoder, folder, named_backbone=backbone)
    use = f'import promptcli as pc\n\nvectors = pc.load("{repo}").encode(sentences)'
    recipe = encoder.recipe.replace(backbone=backbone or f"./{BACKBONE}")
    write_card(folder, entry, recipe, use=use)
    return encoder.fingerprint, backbone


def pull(repo: str, name: str, *, revision: str | None = None, force: bool = False) -> Entry:
    """Save a model that was pushed to the hub; every file is compared with its hash.

    No code in it is run.

    Args:
        repo: Repository of the hub, OWNER/NAME.
        name: Name of the model to save.
        revision: Branch, tag or commit. Default: the main branch.
        force: Overwrite an existing model of that name.

    Returns:
        The saved entry; the commit is in its ``provenance``, under ``pulled``.

    Raises:
        NotFoundError: No such repository or revision, or the hub cannot be reached.
        CheckFailedError: The files are not as pushed; nothing is saved.
    """
    api = client()
    registry = open_registry()
    _check_repo(repo, "pull")
    registry.check_free(name, force=force)
    with registry.new_folder() as temporary:
        folder = temporary / "model"
        note(f"fetching {repo} from {api.endpoint}")
        with _hub_errors(repo):
            info = api.model_info(repo, revision=revision)
            files = [file.rfilename for file in info.siblings or ()]
            if info.sha is None or MODEL_MANIFEST not in files:
                raise UsageError(
                    f"{repo} was not pushed by promptcli; see `promptcli models import {repo}"
                    " --name NAME`"
                )
            api.hf_hub_download(repo, MODEL_MANIFEST, revision=info.sha, local_dir=folder)
            manifest = read_manifest(folder)
            for file in manifest.files:
                if not _is_ours(file):
                    raise CheckFailedError(
                        f"{repo}: {MODEL_MANIFEST} names {file!r}, which no model of promptcli has;"
                        " push it again"
                    )
            patterns = [MODEL_MANIFEST, *manifest.files]
            api.snapshot_download(
                repo, revision=info.sha, local_dir=folder, allow_patterns=patterns
            )
        shutil.rmtree(folder / ".cache", ignore_errors=True)  # of the client
        with opening(f"model {repo}"):
            entry = read_model(ModelFolder(str(folder), folder))  # compares sizes and checksums
        pulled = {"pulled": {"repo": repo, "revision": info.sha}, "backbone": entry.recipe.backbone}
        entry = replace(entry, name=name, provenance={**manifest.provenance, **pulled})
        return replace(registry.save(entry, force=force), fingerprint=manifest.fingerprint)


def _check_repo(repo: str, action: str) -> None:
    if not _REPO.fullmatch(repo):
        revision = ", and a branch or commit as the revision" if action == "pull" else ""
        raise UsageError(f"{repo!r} is not a repository of the hub; give OWNER/NAME{revision}")
    if is_offline():
        raise NotFoundError(f"{action} needs the network; leave out offline=True")


@contextlib.contextmanager
def _hub_errors(repo: str) -> Iterator[None]:
    """Turn any exception of the client into a one-line error in the block; hide the client's
    progress bars unless ours are shown.
    """
    quiet = not shows_bars() and not are_progress_bars_disabled()
    client_log = logging.getLogger("huggingface_hub.hf_api")
    level = client_log.level
    client_log.setLevel(logging.ERROR)  # it would warn of a push that changes nothing
    try:
        if quiet:
            disable_progress_bars()
        yield
    except PromptcliError:
        raise
    # the client, its HTTP library and its storage library raise many classes
    except Exception as error:
        reason = f"{type(error).__name__}: {join_lines(error, 160)}"
        raise NotFoundError(
            f"{repo}: the hub request failed: {reason}; for a private repository or another token"
            f" {_LOGIN}"
        ) from None
    finally:
        client_log.setLevel(level)
        if quiet:
            enable_progress_bars()
