"""push and pull with the hub's client, against a small hub on this machine."""

import json

import numpy as np
import pytest
import yaml
from huggingface_hub import HfApi, constants
from huggingface_hub.utils.tqdm import enable_progress_bars

import promptcli as pc
from promptcli.encoder.encoder import build_encoder
from promptcli.encoder.sentence_encoder import TUNED
from promptcli.errors import CheckFailedError, NotFoundError, UsageError
from promptcli.models import hub as publishing
from promptcli.models.entries import SHIPPED_MODELS, Entry, Registry
from promptcli.models.loading import open_torch_encoder
from promptcli.recipe import Recipe
from tests.comparing import refusal, refused
from tests.hub_stand_in import READER, WRITER, Hub
from tests.random_encoders import random_numbers
from tests.tiny import SENTENCES

REPO = "me/mine"


def push(api, model, repo, **options):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(publishing, "client", lambda: api)
        return publishing.push(model, repo, **options)


def pull(api, repo, name, **options):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(publishing, "client", lambda: api)
        return publishing.pull(repo, name, **options)


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """The stand-in as the hub of the client's settings."""
    server = Hub()
    settings = {
        "ENDPOINT": server.url,
        "HUGGINGFACE_CO_URL_TEMPLATE": server.url + "/{repo_id}/resolve/{revision}/{filename}",
        "HF_HUB_OFFLINE": False,
        "HF_HUB_CACHE": str(tmp_path / "cache"),
        "HF_TOKEN_PATH": str(tmp_path / "token"),
    }
    for name, value in settings.items():
        monkeypatch.setattr(constants, name, value)
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    yield server
    server.close()


@pytest.fixture
def api(hub):
    return HfApi(token=WRITER)


@pytest.fixture
def entry(bert_folder, tiny_backbone):
    """Return a function that makes an entry with random numbers on a backbone in a folder, or on
    one of the hub.
    """

    def make(prompt="[X]", transforms=(), *, backbone=None, tuned=False, **about):
        own = tiny_backbone("bert")
        recipe = Recipe(
            str(bert_folder),
            prompt=prompt,
            pooling="last/avg",
            transforms=tuple(transforms),
        )
        tensors = random_numbers(recipe, own)
        if tuned:
            weights = own.model.state_dict().items()
            tensors |= {
                TUNED + name: value + 0.01 if value.is_floating_point() else value
                for name, value in weights
            }
        return Entry("mine", recipe.replace(backbone=backbone or recipe.backbone), tensors, **about)

    return make


def put_backbone(hub, folder):
    return hub.add("owner/tiny", {path.name: path.read_bytes() for path in folder.iterdir()})


def vectors(entry):
    return build_encoder(entry.recipe, device="cpu", dtype="float32", tensors=entry.tensors).encode(
        SENTENCES
    )


def leftovers(registry, home):
    """Return the registry's entries, those of them that hold a backbone, and what was not
    removed.
    """
    names = [name for name in registry.names() if name not in SHIPPED_MODELS]
    return (
        names,
        [name for name in names if (registry.folder(name) / "backbone").is_dir()],
        list(home.glob(".new.*")),
    )


SCORES = [{"task": "STS-B", "split": "dev", "metric": "spearman", "value": 70.0}]


@pytest.mark.parametrize("where", ["folder", "hub"])
@pytest.mark.parametrize(
    "kind", [{"transforms": ["whitening"]}, {"prompt": "deep-prefix:3"}, {"tuned": True}], ids=str
)
def test_what_was_pushed_comes_back_bit_by_bit(
    where, kind, hub, api, entry, registry, home, bert_folder, tmp_path, monkeypatch
):
    sha = put_backbone(hub, bert_folder)
    transfer = Recipe(backbone=str(bert_folder), pooling="last/cls")
    about = {
        "provenance": {"trained": {"source": f"{tmp_path}/wiki1m_for_simcse.txt", "seed": 3}},
        "scores": SCORES,
    }
    made = entry(
        **kind, backbone="owner/tiny" if where == "hub" else None, transfer=transfer, **about
    )
    heard = []
    monkeypatch.setattr(publishing, "note", lambda line: heard.append((line, list(hub.asked))))
    pushed = push(api, made, REPO)
    said, asked = heard[-1]
    assert (
        f"MB to {hub.url}/{REPO}: " in said
        and "README.md" in said
        and not any(REPO in each for each in asked)
    )
    files = hub.repos[REPO].files()
    kept = json.loads(files["promptcli.json"])["recipe"]["backbone"]
    if where == "hub":
        assert kept == pushed.backbone == f"owner/tiny@{sha}"
        assert "model.safetensors" not in files and "backbone/model.safetensors" not in files
    else:
        assert pushed.backbone is None and kept == ("backbone" if "prompt" in kind else ".")
        assert ("backbone/" if "prompt" in kind else "") + "model.safetensors" in files
    assert ("tensors.safetensors" in files) == ("tuned" not in kind or where == "hub")
    types = {module["type"] for module in json.loads(files["modules.json"])}
    configured = where == "folder" and "prompt" not in kind
    assert all(one.startswith("sentence_transformers.") for one in types) == configured
    for path in (tmp_path, bert_folder):
        assert not any(str(path).encode() in content for content in files.values())

    card = yaml.safe_load(files["README.md"].decode().split("---\n")[1])
    assert (card["library_name"], card["datasets"]) == (
        "promptcli",
        ["princeton-nlp/datasets-for-simcse"],
    )
    assert card.get("base_model") == ("owner/tiny" if where == "hub" else None)
    [model] = card["model-index"]
    assert model["name"] == "mine"
    [result] = model["results"]
    assert result["dataset"]["type"] == "mteb/stsbenchmark-sts"
    relation = "finetune" if "tuned" in kind else "adapter"
    assert card.get("base_model_relation") == (relation if where == "hub" else None)

    pulled = pull(api, REPO, "again")
    again = registry.load("again")
    np.testing.assert_array_equal(vectors(again), vectors(made))
    assert (again.scores, again.provenance["trained"]["seed"]) == (SCORES, 3)
    assert (
        again.provenance["pulled"]
        == pulled.provenance["pulled"]
        == {"repo": REPO, "revision": pushed.commit}
    )
    assert again.transfer == transfer.resolve().replace(backbone=again.recipe.backbone)
    assert leftovers(registry, home) == (["again"], ["again"] if where == "folder" else [], [])
    by_path = pc.load(registry.folder("again"), device="cpu", dtype="float32")
    np.testing.assert_array_equal(by_path.encode(SENTENCES), vectors(made))


def test_the_same_content_makes_no_new_commit_and_an_earlier_model_s_files_go(
    hub, api, entry, registry
):
    first = push(api, entry(transforms=["whitening"]), REPO)
    hub.add(REPO, {"LICENSE": b"mine", "tensors.bin": b"x"})
    commits = len(hub.repos[REPO].log)
    hub.asked.clear()
    second = push(api, entry(transforms=["whitening"]), REPO)
    assert (first.changed, second.changed) == (True, False) and len(hub.repos[REPO].log) == commits
    assert not any("/commit/" in request for request in hub.asked)
    third = push(api, entry(), REPO)
    assert third.changed and len(hub.repos[REPO].log) == commits + 1  # one commit, whatever changed
    assert (
        "tensors.safetensors" not in hub.repos[REPO].files()
        and hub.repos[REPO].files()["LICENSE"] == b"mine"
    )
    np.testing.assert_array_equal(vectors(pull(api, REPO, "plain")), vectors(entry()))


def test_what_the_hub_refuses_is_one_line_and_nothing_is_sent(
    hub, api, entry, registry, monkeypatch
):
    push(api, entry(), REPO)
    push(api, entry(), "me/hidden", private=True)
    assert hub.repos["me/hidden"].private
    pull(HfApi(token=READER), "me/hidden", "hidden")
    other = entry(transforms=["whitening"])
    for error, said, ask in (
        (
            NotFoundError,
            "for a private repository or another token type `hf auth login`",
            lambda: pull(HfApi(), "me/hidden", "x"),
        ),
        (UsageError, "is public; nothing was sent", lambda: push(api, other, REPO, private=True)),
        (
            NotFoundError,
            "me/mine: the hub request failed: .*403",
            lambda: push(HfApi(token=READER), other, REPO),
        ),
        (
            NotFoundError,
            "me/mine: the hub request failed: .*401",
            lambda: push(HfApi(token="hf_wrong"), other, REPO),
        ),
    ):
        with pytest.raises(error, match=said):
            ask()
    assert len(hub.repos[REPO].log) == 2
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    for ask in (
        lambda: pull(HfApi(), REPO, "x"),
        lambda: push(HfApi(token=WRITER), other, REPO),
    ):
        with refusal(f"{REPO}: the hub request failed: ConnectError", NotFoundError):
            ask()


def marked(**changes):
    """Return a change of what ``promptcli.json`` says."""

    def change(files):
        document = json.loads(files["promptcli.json"])
        for key, value in changes.items():
            document[key] = {**document[key], **value} if isinstance(value, dict) else value
        return {"promptcli.json": json.dumps(document).encode()}

    return change


def other_weights(files):
    name = "model.safetensors"
    return {name: files[name][:-1] + bytes([files[name][-1] ^ 1])}


#: Changes of the files of a repository, and the message of pull.
TAMPERED = [
    (lambda files: {"modules.json": files["modules.json"] + b" "}, "modules.json"),
    (other_weights, "model.safetensors"),
    (
        marked(files={"backbone/../../evil.json": {"size": 1, "sha256": "0"}}),
        "which no model of promptcli has",
    ),
    (marked(files={"backbone/vocab.txt": {"size": 1, "sha256": "0"}}), "no backbone/vocab.txt"),
]


def test_what_was_tampered_with_is_refused_and_nothing_is_left(hub, api, entry, registry, home):
    push(api, entry(transforms=["whitening"]), REPO)
    sound = hub.repos[REPO].files()
    for change, said in TAMPERED:
        hub.add(REPO, {**sound, **change(sound)})
        with refusal(said, CheckFailedError):
            pull(api, REPO, "x")
        assert leftovers(registry, home) == ([], [], [])


def test_half_a_download_leaves_nothing_and_what_was_there_stays(hub, api, entry, registry, home):
    push(api, entry(), REPO)
    pull(api, REPO, "x")
    before = vectors(registry.load("x"))
    push(api, entry(transforms=["whitening"]), REPO)
    hub.cut = "tensors.safetensors"
    with refusal("the hub request failed", NotFoundError):
        pull(api, REPO, "x", force=True)
    assert leftovers(registry, home) == (["x"], ["x"], [])
    np.testing.assert_array_equal(vectors(registry.load("x")), before)
    with refusal("'x' exists"):
        pull(api, REPO, "x")


def test_push_and_pull_print_what_they_did_and_refuse_in_one_line(
    hub, entry, registry, run, monkeypatch
):
    registry.save(entry(transforms=["whitening"]))
    refused(run("push", "mine", REPO), 2, "hf auth login", "HF_TOKEN")
    assert not hub.asked
    monkeypatch.setenv("HF_TOKEN", WRITER)
    pushed = run("push", "mine", REPO, "--private")
    assert (pushed.code, pushed.out) == (0, f"{hub.url}/{REPO}\n"), pushed.err
    again = run("push", "mine", REPO, "--json").json
    assert (
        not again["changed"]
        and again["files"]["tensors.safetensors"] > 0
        and again["backbone"] is None
    )
    enable_progress_bars()
    pulled = run("pull", REPO, "--name", "again", "--json")
    assert pulled.json["fingerprint"] == again["fingerprint"] and "it/s" not in pulled.err, (
        "a bar of the client"
    )
    hub.asked.clear()
    hub.add("me/other", {"config.json": b"{}"})
    for arguments, code, said in [
        (("push", "mine", REPO, "--offline"), 3, "leave out --offline"),
        (("pull", REPO, "--name", "x", "--offline"), 3, "leave out --offline"),
        (("push", "mine", "mine"), 2, "give OWNER/NAME\n"),
        (("pull", "me/mine@main", "--name", "x"), 2, "branch or commit"),
        (("pull", "me/other", "--name", "x"), 2, "promptcli models import me/other --name NAME"),
    ]:
        ran = run(*arguments)
        assert (
            (ran.code, ran.out) == (code, "") and said in ran.err and "Traceback" not in ran.err
        ), ran.err
    assert [request for request in hub.asked if "POST" in request] == []


def test_a_folder_called_as_a_repository_goes_first_and_that_is_said(
    hub, run, bert_folder, tmp_path, monkeypatch
):
    sha = put_backbone(hub, bert_folder)
    (tmp_path / "owner").mkdir()
    (tmp_path / "owner" / "tiny").symlink_to(bert_folder)
    monkeypatch.chdir(tmp_path)
    ran = run("similarity", "a cat", "a dog", "--backbone", "owner/tiny")
    assert ran.code == 0 and "owner/tiny is a folder here" in ran.err and not hub.asked
    assert run("models", "import", "owner/tiny@main", "--name", "x", "--json").code == 0
    assert Registry(tmp_path / "home").load("x").provenance["imported"]["revision"] == sha


def test_a_commit_may_be_pulled_and_loaded(hub, api, entry, registry, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", WRITER)
    encoder = open_torch_encoder(entry(transforms=["whitening"]), device="cpu", dtype="stored")
    main = pc.push(encoder, REPO)
    assert main.fingerprint == encoder.fingerprint == encoder.push_to_hub("me/other").fingerprint
    push(api, entry(), REPO)
    pulled = {name: pc.pull(REPO, f"of-{name}", revision=name) for name in ("main", main.commit)}
    assert [one.recipe.transforms for one in pulled.values()] == [(), ("whitening",)]
    opened = pc.load(REPO, revision=main.commit, device="cpu")
    np.testing.assert_array_equal(opened.encode(SENTENCES), encoder.encode(SENTENCES))
    with refusal(f"{REPO}: the hub request failed: RevisionNotFoundError", NotFoundError):
        pull(api, REPO, "d", revision="black")
