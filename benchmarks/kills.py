"""Kill commands at random moments, run them again, and compare what they leave with an unbroken run.

    python benchmarks/kills.py --kills 1000
    python benchmarks/kills.py --kills 20 --only embed-npy,index-build --seed 7

Every kill is SIGKILL, SIGTERM or SIGINT, sent after a random share of the command's usual time, from its first moment
to just after its end. The promises: a stopped command ends with 137, 143 or 130 (or well, if it was done), with a line
or, killed, none; the same command run again ends well; what then lies on the disk is, file by file, that of an unbroken
run, but for times of day and durations; and no temporary file, lock or unfinished run is left.

A command starts in a fork of a process that has torch loaded: the same code runs, without seconds of imports before
every kill. One run in ``--real-every`` is a process of its own, imports included.
"""

import argparse
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

SIGNALS = {"KILL": signal.SIGKILL, "TERM": signal.SIGTERM, "INT": signal.SIGINT}
CODES = {"KILL": 137, "TERM": 143, "INT": 130}
#: What differs from run to run of the same command, and may.
CLOCKS = {"created", "seconds", "minutes", "tokens_per_second", "rate", "gflops", "updated", "made", "promptcli"}
#: Lines that two runs of one command may write differently into a text file, by what they begin with.
TIMED = ("- Tokens seen:", "- Matrix products", "- Command:")


@dataclass(frozen=True)
class Case:
    """A command and how it goes on after a kill.

    ``again`` is added to the command when it is run again; ``resume`` instead, where an unfinished run is there.
    """

    words: tuple[str, ...]
    again: tuple[str, ...] = ()
    resume: tuple[str, ...] = ()
    before: tuple[tuple[str, ...], ...] = ()


_SMALL = ("--backbone", "../bert", "--offline", "--quiet")
_TRAIN = ("--data", "text.txt", "--batch-size", "8", "--epochs", "1", "--eval-steps", "3", *_SMALL)
CASES = {
    **{
        f"embed-{kind}": Case(("embed", "text.txt", "-o", f"out.{kind}", *_SMALL), again=("--force",))
        for kind in ("npy", "parquet", "jsonl", "safetensors")
    },
    "index-build": Case(("index", "build", "text.txt", "-o", "index", *_SMALL), again=("--force",)),
    "index-rebuild": Case(
        ("index", "build", "text.txt", "-o", "index", "--force", *_SMALL),
        before=(("index", "build", "other.txt", "-o", "index", *_SMALL),),
    ),
    "fit": Case(
        ("fit", "--recipe", "whitening", "--transform", "whitening:4", "--on", "text.txt", "--name", "white", *_SMALL),
        again=("--force",),
    ),
    **{
        f"train-{name}": Case(("train", "--method", name, *_TRAIN), again=("--force",), resume=("--resume",))
        for name in ("dcpcse", "simcse", "promptbert", "optiprompt")
    },
    "pretrain": Case(
        (
            *("pretrain", "text.txt", "-o", "made", "--layers", "1", "--width", "32", "--vocab-size", "200"),
            *("--tokens", "6000", "--batch-tokens", "512", "--positions", "64", "--save-minutes", "0.001", "--quiet"),
        ),
        resume=("--resume",),
    ),
    "ditto-search": Case(("ditto-search", *_SMALL), again=("--force",)),
    "search-templates": Case(
        ("search-templates", "--mode", "free", "--limit", "6", "--top", "2", *_SMALL), again=("--force",)
    ),
    "models-alias": Case(("models", "alias", "one", "mini")),
    "config-set": Case(("config", "set", "backbone", "../bert")),
    "reproduce": Case(("reproduce", "promptbert/2", *_SMALL), again=()),
}


def prepare(folder: Path, inputs: Path) -> None:
    """Make the folder that a command is run in: its inputs and a home of its own."""
    shutil.copytree(inputs, folder)


def launch(words, folder: Path, *, real: bool) -> int:
    """Start a command in ``folder``; return its process id. Its stderr goes to ``stderr`` next to the folder."""
    log = folder.with_suffix(".stderr")
    environment = {"PROMPTCLI_HOME": str(folder / "home"), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    if real:
        return subprocess.Popen(
            [sys.executable, "-m", "promptcli", *words],
            cwd=folder,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=log.open("wb"),
        ).pid
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        os.chdir(folder)
        os.environ.update(environment)
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 0)
        os.dup2(null, 1)
        os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
        sys.argv = ["promptcli", *words]
        from promptcli.cli.app import main

        main(list(words))
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 0 if ended.code is None else 1
    finally:
        os._exit(code)


def wait(process: int) -> int:
    """Return the exit code of a process, 128 + n where signal n ended it."""
    code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    return code if code >= 0 else 128 - code


def run(words, folder: Path, *, real: bool = False) -> tuple[int, str]:
    """Run a command to its end; return code and stderr."""
    code = wait(launch(words, folder, real=real))
    return code, folder.with_suffix(".stderr").read_text(errors="replace")


def timeless(value):
    """Return a JSON value without times of day and durations."""
    if isinstance(value, dict):
        return {key: timeless(one) for key, one in value.items() if key not in CLOCKS}
    return [timeless(one) for one in value] if isinstance(value, list) else value


def digest(path: Path) -> str:
    """Return a hash of what a file says, times left out."""
    content = path.read_bytes()
    if path.suffix in (".json", ".jsonl") and not path.name.startswith("out."):
        lines = [content] if path.suffix == ".json" else content.splitlines()
        content = json.dumps([timeless(json.loads(line)) for line in lines if line.strip()]).encode()
    elif path.suffix == ".safetensors":  # its header may hold the time spent; the numbers follow it
        size = int.from_bytes(content[:8], "little")
        header = {name: about for name, about in json.loads(content[8 : 8 + size]).items() if name != "__metadata__"}
        content = json.dumps(header).encode() + content[8 + size :]
    elif path.suffix == ".md":
        content = b"\n".join(line for line in content.splitlines() if not line.decode().startswith(TIMED))
    return hashlib.sha256(content).hexdigest()


def left(folder: Path) -> dict[str, str]:
    """Return every file under a folder with the hash of what it says."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file() and path.suffix != ".png")
    return {str(path.relative_to(folder)): digest(path) for path in files}


def difference(one: dict[str, str], other: dict[str, str]) -> str:
    """Return in which files two states differ; empty where they do not."""
    # a part's name follows from its content, a manifest names its parts: neither may differ
    names = sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name))
    return ", ".join(names[:4])


def broken(case: Case, kind: str, moment: float, folder: Path, whole: dict[str, str], *, real: bool) -> str:
    """Kill a command once; return which promise was broken, or nothing."""
    process = launch(case.words, folder, real=real)
    time.sleep(moment)
    os.kill(process, SIGNALS[kind])
    code = wait(process)
    said = folder.with_suffix(".stderr").read_text(errors="replace")
    if code not in (0, CODES[kind]):
        return f"ended with {code}: {said[-300:]}"
    if "Traceback" in said:
        return f"a traceback: {said[-300:]}"
    if code in (130, 143) and len(said.strip().splitlines()) != 1:
        return f"ended with {code} and said {said[-300:]!r}"
    code, said = run((*case.words, *case.again), folder)
    if code == 2 and case.resume:
        code, said = run((*case.words, *case.resume), folder)
    if code:
        return f"run again: ended with {code}: {said[-300:]}"
    differing = difference(whole, left(folder))
    return f"run again: not what an unbroken run leaves: {differing}" if differing else ""


def inputs(folder: Path) -> Path:
    """Make the files that the commands read."""
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from promptcli.data.demo import SENTENCES
    from tests.tiny import save_tiny

    made = folder / "inputs"
    made.mkdir()
    save_tiny("bert", folder / "bert")
    sentences = SENTENCES.read_text(encoding="utf-8").splitlines()
    (made / "text.txt").write_text("\n".join(sentences[:160]) + "\n", encoding="utf-8")
    (made / "other.txt").write_text("\n".join(sentences[200:300]) + "\n", encoding="utf-8")
    return made


def unbroken(case: Case, folder: Path, source: Path) -> tuple[dict[str, str], float]:
    """Return what an unbroken run leaves, the second of two as a kill's is, and how long it takes."""
    prepare(folder, source)
    for words in case.before:
        code, said = run(words, folder)
        assert code == 0, said
    began = time.monotonic()
    code, said = run(case.words, folder)
    seconds = time.monotonic() - began
    assert code == 0, f"{' '.join(case.words)}: {said}"
    return left(folder), seconds


def main() -> None:
    """Kill, count, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default=",".join(CASES))
    parser.add_argument("--real-every", type=int, default=20)
    given = parser.parse_args()
    names = given.only.split(",")
    draw = random.Random(given.seed)
    import torch  # noqa: F401  loaded once, for all forks
    import transformers  # noqa: F401

    import promptcli.cli.app  # noqa: F401

    with tempfile.TemporaryDirectory() as place:
        root = Path(place)
        source = inputs(root)
        known = {name: unbroken(CASES[name], root / f"whole-{name}", source) for name in names}
        found: list[str] = []
        counts = dict.fromkeys(names, 0)
        for number in range(given.kills):
            name = names[number % len(names)]
            case, (whole, seconds) = CASES[name], known[name]
            folder = root / f"kill-{number}"
            prepare(folder, source)
            for words in case.before:
                run(words, folder)
            real = given.real_every > 0 and number % given.real_every == 0
            moment = draw.uniform(0, 1.1 * seconds + (6 if real else 0))
            kind = draw.choice(sorted(SIGNALS))
            why = broken(case, kind, moment, folder, whole, real=real)
            counts[name] += 1
            if why:
                found.append(f"{name}, SIG{kind} after {moment:.3f} s{', a process of its own' if real else ''}: {why}")
                print(found[-1], file=sys.stderr, flush=True)
            shutil.rmtree(folder)
        print(json.dumps({"kills": given.kills, "seed": given.seed, "broken": len(found), "by_command": counts}))
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
