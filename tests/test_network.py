"""No command uses the network unasked, none under --offline.

What is fetched is announced before the first socket.
"""

import re
import shlex
import shutil
import socket
from pathlib import Path

import pytest

import promptcli as pc
from promptcli.cli.command_line import command
from promptcli.models.loading import resolve_entry
from promptcli.recipe import ModelChoice
from tests import network
from tests.comparing import refusal, refused
from tests.senteval import write_transfer
from tests.tiny import SENTENCES

TINY = "--backbone bert -q"


COMMANDS = {
    " ".join(path): found for path, found in command().walk() if not hasattr(found, "commands")
}

#: What listens to other programs, or is there to use the network, has tests of its own.
TESTED_ELSEWHERE = {"serve", "mcp", "push", "pull"}

#: Each command on files of this machine, in as many lines as it has uses; # is a number that no
#: line had before.
LINES = {
    "examples": "examples --force",
    "embed": f"embed mine.txt -o new.npy --force {TINY}",
    "similarity": f"similarity one two {TINY}",
    "eval": (
        f"""eval --task mine.tsv -m last-avg {TINY}
        eval --data-dir senteval --task MR --fast -m last-avg {TINY}"""
    ),
    "fit": f"fit --on mine.txt --name new -m first-last-tfidf --force {TINY}",
    "export": "export last-avg -o export# --to sentence-transformers --backbone bert",
    "ditto-search": f"ditto-search --on mine.tsv --corpus mine.txt --force {TINY}",
    "search-layers": f"search-layers --on mine.tsv {TINY}",
    "search-templates": f"search-templates --mode free --limit 3 --on mine.tsv --force {TINY}",
    "train": (
        f"train simcse --data mine.txt --on mine.tsv --batch-size 24 --epochs 1 --force {TINY}"
    ),
    "optiprompt": (
        f"optiprompt --data mine.txt --on mine.tsv --batch-size 24 --epochs 1 --force {TINY}"
    ),
    "pretrain": (
        "pretrain mine.txt -o made# --layers 1 --width 16 --heads 2 --vocab-size 120 --tokens 300"
        " --batch-tokens 128 --positions 64 -q"
    ),
    "reproduce": f"reproduce promptbert/2 {TINY}",
    "choose": "choose few-letters.csv -q",
    "adapt": (
        f"train distill --data mine.txt --set teacher=mini-static --on mine.tsv --batch-size 4"
        f" --steps 1 --name start --force {TINY}\n"
        "adapt letters.csv -m start --name adapted --dry-run -q"
    ),
    "index build": f"index build mine.txt -o index --force {TINY}",
    "index sync": "index sync mirror mine.txt",
    "search": "search 'a cat' mine.txt",
    "index migrate": "index migrate index -m mini-static -q",
    "tune": (
        f"tune simcse --data mine.txt --on mine.tsv --batch-size 24 --seeds 2 --steps 1 --force"
        f" --name tuned {TINY}"
    ),
    "index add": (
        "index add index mine.txt --allow-duplicates -q\n"
        "index add --replace index mine.tsv --text-field sentence1 --id-field sentence1"
        " --allow-duplicates -q"
    ),
    "index delete": "index delete index # -q",
    "index compact": "index compact index -q",
    "index search": "index search index 'a cat' -q",
    "index dups": "index dups index -q\nindex dups index --against mine.txt -q",
    "judge": "judge mine.txt index --way words --way meaning -o judged# --template asked#.tsv -q",
    "dups": "dups mine.txt --against mine.tsv",
    "index info": "index info index",
    "models list": "models list\nmodels list --recipes",
    "models show": "models show mini",
    "compare": (
        f"train simcse --data mine.txt --on mine.tsv --batch-size 4 --steps 1 --seed 0"
        f" --name one-# --force -q {TINY}\n"
        f"train simcse --data mine.txt --on mine.tsv --batch-size 4 --steps 1 --seed 1"
        f" --name two-# --force -q {TINY}\n"
        "compare one-# two-#"
    ),
    "models import": "models import bert --name imported --force -q",
    "models remove": "models import bert --name short -q\nmodels remove short",
    "templates": f"templates manual {TINY}",
    "config": "config\nconfig backbone mini-bert\nconfig backbone --unset",
    "analyze": (
        f"""analyze mask-tokens 'a cat' {TINY}
        analyze anisotropy mine.txt -m last-avg {TINY}
        analyze vocabulary {TINY}
        analyze uniformity -m last-avg {TINY}
        analyze token-bias mine.txt {TINY}
        analyze impact 'a cat' {TINY}
        analyze impact-tfidf mine.txt --set corpus=mine.txt --set first=2 {TINY}
        analyze attention 'a cat' --set head=1-1 {TINY}"""
    ),
}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory, bert_folder):
    """A folder with a backbone, files of sentences and pairs, SentEval's MR, and an index."""
    folder = tmp_path_factory.mktemp("inputs")
    (folder / "bert").symlink_to(bert_folder)
    texts = [f"{text} {number}" for number in range(4) for text in SENTENCES]
    pairs = [
        f"{one}\t{two}\t{n % 5}\n"
        for n, (one, two) in enumerate(zip(texts[:8], texts[8:16], strict=True))
    ]
    (folder / "mine.txt").write_text("".join(f"{text}\n" for text in texts))
    letters = [
        f"letter {n} of {text}\tthe text of it, {text}\n" for n, text in enumerate(4 * texts)
    ]
    for name, count in (("letters", len(letters)), ("few-letters", 60)):
        (folder / f"{name}.csv").write_text("subject\ttext\n" + "".join(letters[:count]))
    (folder / "mine.tsv").write_text("sentence1\tsentence2\tscore\n" + "".join(pairs))
    write_transfer(folder / "senteval")
    pc.SentenceIndex.build(texts, pc.load("mini-static"), output=folder / "index")
    return folder


@pytest.fixture
def online(inputs, monkeypatch, tmp_path):
    """A copy of the inputs for each test; the libraries believe that there is a network."""
    import datasets
    import huggingface_hub.constants

    shutil.copytree(inputs, tmp_path / "place", symlinks=True)
    monkeypatch.chdir(tmp_path / "place")
    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"):
        monkeypatch.setenv(name, "0")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)


def test_every_command_is_tried():
    assert LINES.keys() == COMMANDS.keys() - TESTED_ELSEWHERE


@pytest.mark.parametrize("name", LINES)
def test_no_socket_is_opened_for_files_of_this_machine(name, online, run, no_network):
    for number, way in enumerate(("", "--offline")):
        for line in LINES[name].replace("#", str(number)).splitlines():
            ran = run(*shlex.split(f"{line} {way}"))
            assert ran.code == 0, ran.err
            assert not no_network


#: What names something of the hub, and how its fetching is announced.
FETCHED = {
    "eval --task STS-B -m last-avg --backbone bert": "data set mteb/stsbenchmark-sts",
    "eval --list-sentences --task SICK-R": "data set",
    "fit --on wiki1m_for_simcse --name x -m first-last-tfidf --backbone bert": (
        "wiki1m_for_simcse.txt"
    ),
    "ditto-search --on STS-B:dev --backbone bert --force": "data set mteb/stsbenchmark-sts",
    "reproduce promptbert/5 --backbone bert": "data set",
    "similarity one two --backbone owner/name": "owner/name",
    "export last-avg -o x --to sentence-transformers --backbone owner/name": "owner/name",
    "models import owner/name --name x": "owner/name",
    "pull owner/name --name x": "owner/name",
}


@pytest.fixture
def no_waiting(monkeypatch):
    """Let libraries try again without a pause."""
    monkeypatch.setattr("time.sleep", lambda seconds: None)


@pytest.mark.parametrize("line", FETCHED)
def test_what_is_fetched_is_announced_before_the_first_socket(
    line, online, no_waiting, run, no_network, capsys
):
    heard = []

    def listen():
        if not heard:
            heard.append(capsys.readouterr().err)

    network.listeners.append(listen)
    try:
        ran = run(*shlex.split(line))
    finally:
        network.listeners.remove(listen)
    assert no_network and heard
    assert ("fetching" in heard[0] or "looking for" in heard[0]) and FETCHED[line] in heard[0]
    assert ran.code in (0, 1, 3) and "Traceback" not in ran.err
    no_network.clear()


@pytest.mark.parametrize("line", FETCHED)
def test_nothing_is_fetched_offline(line, online, run, no_network):
    ran = run(*shlex.split(line), "--offline")
    assert not no_network and "fetching" not in ran.err and "looking for" not in ran.err
    assert ran.code in (0, 1, 3) and "Traceback" not in ran.err


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("-m minni", "did you mean mini? for a hub repository of that name write minni@main"),
        (
            "--backbone minibert",
            "did you mean mini-bert? for a hub repository of that name write minibert@main",
        ),
        ("-m mine.txt", "'mine.txt' is a file"),
        (
            "-m real/one-modell",
            "'real/one-modell'; did you mean real/one-model? for a hub",
        ),
        (
            "--backbone real/other",
            "folder 'real' has none of that name; for a hub repository of that name write",
        ),
        ("-m ./real/other", "no backbone folder './real/other'"),
        ("-m a/real/other", "no backbone folder 'a/real/other'"),
    ],
)
def test_a_mistyped_name_a_file_and_a_path_are_not_looked_for_on_the_hub(
    given, message, online, run, no_network
):
    Path("real", "one-model").mkdir(parents=True)
    refused(run("similarity", "one", "two", *given.split()), 3, message)
    assert not no_network


@pytest.fixture
def cached(tmp_path, monkeypatch):
    """The hub's cache, with one model whose files are missing."""
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    (tmp_path / "cache" / "models--sentence-transformers--all-MiniLM-L6-v2").mkdir(parents=True)


@pytest.mark.parametrize(
    "line", ["similarity one two -m", "similarity one two --backbone", "analyze anisotropy -m"]
)
def test_a_cached_model_without_its_owner_is_named(line, cached, online, run, no_network):
    message = "no [a-z]+ 'all-minilm-l6-v2'; did you mean sentence-transformers/all-MiniLM-L6-v2[?]"
    ran = run(*line.split(), "all-minilm-l6-v2")
    assert ran.code == 3 and re.search(message, ran.err), ran.err
    assert not no_network


@pytest.mark.parametrize(
    ("name", "meant"), [("minni", "mini"), ("promt", "prompt"), ("minibert", "mini-bert")]
)
def test_a_mistyped_model_is_not_looked_for_as_a_backbone(name, meant, online, no_network):
    for model in (name, ModelChoice(model=name)):
        with refusal(f"no model '{name}'; did you mean {meant}[?]", pc.NotFoundError):
            resolve_entry(model)
    assert not no_network


@pytest.mark.parametrize("name", ["distilroberta", "minni@main", "owner/name", "place/name@main"])
def test_a_name_like_none_of_ours_is_looked_for_on_the_hub(
    name, online, no_waiting, run, no_network
):
    assert run("similarity", "one", "two", "-m", name).code == 3 and no_network
    no_network.clear()


def test_the_suite_has_no_network(no_network):
    for host in ("example.org", "192.0.2.1"):
        with pytest.raises(OSError, match="unreachable"):
            socket.create_connection((host, 80))
    assert len(no_network) == 2
    no_network.clear()
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()),
    ):
        pass
