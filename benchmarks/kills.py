"""Kill commands at random moments, run them again, and compare what they leave with an unbroken
run.

    python benchmarks/kills.py --kills 1000 --log kills.jsonl
    python benchmarks/kills.py --kills 40 --only embed-npy,index-build --seed 7

Every kill is SIGKILL, SIGTERM or SIGINT, half of them at a random time from the first moment in
which Python can answer to just after the end, half before a random file event (a file opened for
writing, a rename, an fsync, ...). The promises: a stopped command ends with 137, 143 or 130 (or 0,
if it was done). Stopped by SIGTERM or SIGINT it prints one line and leaves no temporary file. The
same command run again, or with ``--resume``, ends well and prints what an unbroken run prints. The
disk is then, file by file, that of an unbroken run, but for times of day, durations, locks, and the
temporary files of a killed process, which are deleted after a day. If doing a thing twice is not
doing it once (``index add``), the disk may also be that of two unbroken runs.

A command is run in a fork of a process that has loaded all it imports: the same code without
seconds of imports. One kill in ``--real-every`` is of a process of its own, imports included. Each
kill is a line of ``--log``; what is in the log already is not done again, so that after a repair
only the lines of the commands concerned need be taken out.
"""

import argparse
import contextlib
import functools
import gc
import hashlib
import importlib
import itertools
import json
import multiprocessing
import os
import random
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

SIGNALS = {"KILL": signal.SIGKILL, "TERM": signal.SIGTERM, "INT": signal.SIGINT}
CODES = {"KILL": 137, "TERM": 143, "INT": 130}
INTERRUPTED = tuple(
    f"promptcli: interrupted; {left}"
    for left in (
        "nothing was changed",
        "no results were saved",
        "finished",
        "scored templates",
        "--resume continues",
    )
)
#: What differs from run to run of the same command, and may.
CLOCKS = {"created", "seconds", "minutes", "tokens_per_second", "rate", "updated", "made"}
#: Lines that two runs of one command may write differently, on stdout or into a text file.
TIMED = re.compile(
    rf"- Tokens seen:|- Matrix products|- Command:|({'|'.join(sorted(CLOCKS))})\b|.*\bseconds\b|.*"
    r" \d+ s\b"
)
#: What a killed process may leave: temporary files, deleted after a day, and those in the system's
#: temporary folder.
LEFTOVER = re.compile(r"(^|/)\.[^/]*\.([0-9a-f]{8}\.tmp|old)(/|$)|^tmp/")
#: Files of vectors of an index, whose names are random.
VECTORS = re.compile(r"vectors-[0-9a-f]{8}\.float(16|32)")
#: Audit events of Python that change a disk; ``open`` only for writing.
EVENTS = {
    "os.rename",
    "os.remove",
    "os.mkdir",
    "os.rmdir",
    "os.truncate",
    "os.link",
    "shutil.rmtree",
    "open",
    "fsync",
}


@dataclass(frozen=True)
class Case:
    """A command and how it goes on after a kill.

    ``again`` is added to the command when it is run again; ``resume`` instead, where an unfinished
    run is there.
    """

    words: tuple[str, ...]
    again: tuple[str, ...] = ()
    resume: tuple[str, ...] = ()
    before: tuple[tuple[str, ...], ...] = ()
    twice: bool = False  #: Doing it again is another thing than doing it once.
    done: int = 0  #: Exit code of the command run again when it had done its work.
    long: bool = False  #: Killed every third time round.


_SMALL = ("--backbone", "../bert", "--offline", "--quiet")
_PAIRS = ("--on", "pairs.tsv")
_TRAIN = ("--batch-size", "8", "--epochs", "1", "--set", "eval-steps=3", *_PAIRS, *_SMALL)
_INDEX = ("index", "build", "text.txt", "-o", "index", *_SMALL)
_KEYED = (
    "index",
    "build",
    "rows.tsv",
    "--id-field",
    "id",
    "--text-field",
    "text",
    "-o",
    "index",
    *_SMALL,
)
_DELETE = ("index", "delete", "index", "3", "5", "-q")
_PARTS = ("embed", "text.txt", "-o", "parts", "--shards", "4", *_SMALL)
_IMPORT = ("models", "import", "../bert", "--name", "foreign", "--offline", "-q")
_FIT = (
    "fit",
    "--model",
    "whitening",
    "--transform",
    "whitening:4",
    "--on",
    "text.txt",
    "--name",
    "white",
    *_SMALL,
)
CASES = {
    **{
        f"embed-{kind}": Case(
            ("embed", "text.txt", "-o", f"out.{kind}", *_SMALL), again=("--force",)
        )
        for kind in ("npy", "parquet", "jsonl")
    },
    "index-build": Case(_INDEX, again=("--force",)),
    "index-rebuild": Case(
        (*_INDEX, "--force"),
        before=(("index", "build", "other.txt", "-o", "index", "--factory", "HNSW4", *_SMALL),),
    ),
    "index-add": Case(
        tuple("index add index other.txt --allow-duplicates --offline -q".split()),
        before=(_INDEX,),
        twice=True,
    ),
    "index-upsert": Case(
        (
            "index",
            "add",
            "--replace",
            "index",
            "news.tsv",
            "--id-field",
            "id",
            "--text-field",
            "text",
            "--offline",
            "-q",
        ),
        before=(_KEYED,),
        twice=True,
    ),
    "index-delete": Case(_DELETE, before=(_INDEX,), done=2),
    "index-compact": Case(
        ("index", "compact", "index", "-q"), before=(_INDEX, _DELETE), twice=True
    ),
    "index-sync": Case(
        ("index", "sync", "index", "text.txt", "rows.tsv", "-q"),
        before=(("index", "sync", "index", "text.txt", *_SMALL),),
    ),
    "index-sync-all": Case(
        ("index", "sync", "index", "text.txt", "long.txt", "pairs.tsv:sentence1", "--yes", "-q"),
        before=(
            ("index", "sync", "index", "rows.tsv", "text.txt", "--split", "--lexical", *_SMALL),
        ),
    ),
    "embed-parts": Case(_PARTS),
    "models-import": Case(_IMPORT, again=("--force",)),
    "models-reimport": Case(
        (*_IMPORT, "--force"),
        before=(("models", "import", "../roberta", "--name", "foreign", "--offline", "-q"),),
    ),
    "pull": Case(
        ("pull", "me/mine", "--name", "new", "-q"),
        again=("--force",),
        before=(_FIT, ("push", "white", "me/mine", "-q")),
    ),
    "push": Case(("push", "white", "me/other", "-q"), before=(_FIT,), twice=True),
    "export": Case(
        ("export", "white", "--to", "sentence-transformers", "-o", "exported", "--offline", "-q"),
        again=("--force",),
        before=(_FIT,),
    ),
    "fit": Case(_FIT, again=("--force",)),
    **{
        f"train-{name}": Case(
            ("train", name, "--data", data, *_TRAIN),
            again=("--force",),
            resume=("--resume",),
            long=True,
        )
        for name, data in [
            *((name, "few.txt") for name in ("dcpcse", "simcse", "promptbert", "optiprompt")),
            ("sbert", "labelled.tsv"),
        ]
    },
    "train-seeds": Case(
        ("tune", "simcse", "--data", "few.txt", "--seeds", "2", *_TRAIN),
        again=("--force",),
        resume=("--resume",),
        long=True,
    ),
    "pretrain": Case(
        tuple(
            "pretrain text.txt -o made --layers 1 --width 16 --heads 2 --vocab-size 200 --tokens"
            " 3200 --batch-tokens 128 --positions 64 --quiet".split()
        ),
        resume=("--resume",),
        long=True,
    ),
    "ditto-search": Case(
        ("ditto-search", "--corpus", "text.txt", "--name", "found", *_PAIRS, *_SMALL),
        again=("--force",),
    ),
    "search-templates": Case(
        ("search-templates", "--mode", "free", "--limit", "6", "--name", "found", *_PAIRS, *_SMALL),
        again=("--force",),
    ),
    "models-remove": Case(("models", "remove", "white"), before=(_FIT,), done=3),
    "config-set": Case(("config", "backbone", "../bert")),
    "reproduce": Case(("reproduce", "promptbert/2", *_SMALL)),
}


def nothing() -> None:
    """Do nothing."""


def launch(words, folder: Path, *, real: bool = False, watch=nothing, at_end=nothing) -> int:
    """Start a command in ``folder``.

    Return its process id. stdout and stderr go to files next to the folder.
    """
    environment = {"PROMPTCLI_HOME": str(folder / "home"), "OMP_NUM_THREADS": "1"}
    environment["TMPDIR"] = str(folder / "tmp")  # what a library leaves there is seen, too
    out, err = (
        os.open(said(folder, name), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for name in ("out", "err")
    )
    if real:
        command = [sys.executable, "-m", "promptcli", *words]
        streams = {"stdin": subprocess.DEVNULL, "stdout": out, "stderr": err}
        child = subprocess.Popen(command, cwd=folder, env=os.environ | environment, **streams).pid
    else:
        child = os.fork()
    if child:
        os.close(out)
        os.close(err)
        return child
    code = 1
    try:
        os.chdir(folder)
        os.environ.update(environment)
        tempfile.tempdir = None
        for number, descriptor in enumerate((os.open(os.devnull, os.O_RDONLY), out, err)):
            os.dup2(descriptor, number)
        sys.argv = ["promptcli", *words]
        watch()
        from promptcli.__main__ import main

        main()
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 0 if ended.code is None else 1
    except BaseException:
        traceback.print_exc()
    finally:
        at_end()
        os._exit(code)


def said(folder: Path, name: str) -> Path:
    """Return the file with a command's ``out`` or ``err``."""
    return folder.with_name(f"{folder.name}.{name}")


def wait(process: int) -> int:
    """Return the exit code of a process, 128 + n where signal n ended it."""
    code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    return code if code >= 0 else 128 - code


def run(words, folder: Path, **watched) -> tuple[int, str, str]:
    """Run a command to its end; return code, stdout without times, stderr."""
    code = wait(launch(words, folder, **watched))
    out, err = (said(folder, name).read_text(errors="replace") for name in ("out", "err"))
    return code, "\n".join(line for line in out.splitlines() if not TIMED.match(line)), err


def on_events(act) -> None:
    """Call ``act`` before every file event of this process, and every statement of SQLite."""

    def audit(event, arguments):
        if event == "open" and isinstance(arguments[0], int):
            return  # a stream of this process
        if event in EVENTS and (
            event != "open" or (arguments[2] or 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        ):
            act()

    sys.addaudithook(audit)
    connect = sqlite3.connect

    def traced(*arguments, **options):
        connection = connect(*arguments, **options)
        connection.set_trace_callback(lambda statement: act())
        return connection

    sqlite3.connect = traced
    plain = os.fsync
    os.fsync = lambda descriptor: (sys.audit("fsync"), plain(descriptor))[1]


def count_events(file: Path) -> None:
    """Let this process write a byte into ``file`` for every file event."""
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    on_events(lambda: os.write(descriptor, b"."))


def die_before_event(number: int, sent: int) -> None:
    """Let this process send itself a signal before its file event of that number, from 1."""
    left = iter(range(number - 1))
    pending = iter([None])

    def act():
        if next(left, None) is None and next(pending, 0) is None:
            os.kill(os.getpid(), sent)

    on_events(act)


def can_answer(process: int) -> bool:
    """Return whether a process has its own handler of SIGTERM, or has ended."""
    try:
        caught = re.search(
            r"^SigCgt:\s*(\w+)$", Path(f"/proc/{process}/status").read_text(), re.MULTILINE
        )
    except OSError:
        return True
    return caught is None or bool(int(caught[1], 16) >> (signal.SIGTERM - 1) & 1)


def timeless(value):
    """Return a JSON value without times of day and durations."""
    if isinstance(value, dict):
        return {key: timeless(one) for key, one in value.items() if key not in CLOCKS}
    return [timeless(one) for one in value] if isinstance(value, list) else value


def digest(path: Path) -> str:
    """Return a hash of what a file says, times left out."""
    if path.name == "index.sqlite":
        return rows_of(path)
    if path.suffix == ".sqlite":
        return kept_in(path)
    content = path.read_bytes()
    if path.suffix in (".json", ".jsonl") and not path.name.startswith("out."):
        lines = [content] if path.suffix == ".json" else content.splitlines()
        content = json.dumps(
            [timeless(json.loads(line)) for line in lines if line.strip()]
        ).encode()
    elif path.suffix == ".safetensors":  # its header may hold the time spent; the numbers follow it
        size = int.from_bytes(content[:8], "little")
        header = {
            name: about
            for name, about in json.loads(content[8 : 8 + size]).items()
            if name != "__metadata__"
        }
        content = json.dumps(header).encode() + content[8 + size :]
    elif path.suffix == ".md":
        content = b"\n".join(
            line for line in content.splitlines() if not TIMED.match(line.decode())
        )
    return hashlib.sha256(content).hexdigest()


def kept_in(path: Path) -> str:
    """Return a hash of the values in a cache, times left out."""
    with contextlib.closing(sqlite3.connect(path)) as database:
        rows = database.execute("SELECT key, value FROM kept ORDER BY key").fetchall()
    kept = [(key, timeless(json.loads(value))) for key, value in rows]
    return hashlib.sha256(repr(kept).encode()).hexdigest()


def rows_of(path: Path) -> str:
    """Return a hash of the rows, columns, vectors and files of an index, whatever their keys."""
    from promptcli.retrieval.store import Store

    queries = (
        "SELECT key, id, part, text, source FROM rows ORDER BY key",
        "SELECT c.* FROM rows JOIN columns c ON key=_key ORDER BY key",
        "SELECT name, size, sha256 FROM files ORDER BY name",
        "SELECT value FROM settings WHERE name IN ('origin', 'reading', 'numbered', 'lexical')",
    )
    with contextlib.closing(Store.open(path.parent)) as store, store.reading():
        sql = store.sql
        rows = [row["key" in query :] for query in queries for row in sql.execute(query)]
        vectors = store.vectors(
            [key for (key,) in sql.execute("SELECT key FROM rows ORDER BY key")]
        )
    return hashlib.sha256(repr(rows).encode() + vectors.tobytes()).hexdigest()


def left(folder: Path) -> dict[str, str]:
    """Return every file and folder but locks with the hash of its content.

    Of pictures, that they exist; of files of vectors, how many there are: those of the rows are
    compared with the database.
    """
    paths = sorted(
        path for path in folder.rglob("*") if path.suffix != ".lock" and path.name != ".lock"
    )
    found = {
        str(path.relative_to(folder)): (
            "" if path.is_dir() or path.suffix == ".png" else digest(path)
        )
        for path in paths
        if not VECTORS.fullmatch(path.name)
    }
    counts = Counter(
        str(path.parent.relative_to(folder)) for path in paths if VECTORS.fullmatch(path.name)
    )
    return found | {f"{name}/vectors": str(count) for name, count in counts.items()}


def difference(one: dict[str, str], other: dict[str, str]) -> str:
    """Return in which files two states differ; empty where they do not."""
    names = sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name))
    return ", ".join(names[:6])


@dataclass(frozen=True)
class Unbroken:
    """What unbroken runs of a command leave and say, and how long they are."""

    states: list[dict[str, str]]  #: after it; where it may be done twice, after two runs, too
    outs: list[str]  #: what they print
    seconds: float
    events: int


def serve_hub(sender) -> None:
    """Stand in for the hub of Hugging Face until the process is ended; say where."""
    from tests.hub_stand_in import Hub

    sender.send(Hub().url)
    signal.pause()


def start_hub() -> None:
    """Start a stand-in for the hub, and let every command that is still to be loaded take it for
    the hub.
    """
    sys.path.insert(0, str(Path(__file__).parents[1]))
    receiver, sender = multiprocessing.Pipe(duplex=False)
    multiprocessing.get_context("fork").Process(
        target=serve_hub, args=(sender,), daemon=True
    ).start()
    os.environ |= {
        "HF_ENDPOINT": receiver.recv(),
        "HF_TOKEN": "hf_writer",
        "HF_HUB_DISABLE_XET": "1",
    }


def make_inputs(root: Path) -> None:
    """Make the backbones and the files that the commands read."""
    from promptcli.data.demo import SENTENCES_FILE
    from tests.tiny import save_tiny

    for family in ("bert", "roberta"):
        save_tiny(family, root / family)
    sentences = SENTENCES_FILE.read_text(encoding="utf-8").splitlines()
    made = root / "inputs"
    (made / "tmp").mkdir(parents=True)
    pairs = [f"{one}\t{other}" for one, other in itertools.pairwise(sentences[300:317])]
    for name, lines in {
        "text.txt": sentences[:96],
        "few.txt": sentences[:48],
        "long.txt": [" ".join(sentences[start : start + 30]) for start in (0, 30, 60)],
        "other.txt": sentences[200:260],
        "pairs.tsv": [
            "sentence1\tsentence2\tscore",
            *(f"{pair}\t{n % 5}" for n, pair in enumerate(pairs)),
        ],
        "rows.tsv": [
            "id\ttext",
            *(f"a{number}\t{text}" for number, text in enumerate(sentences[:60])),
        ],
        "news.tsv": [
            "id\ttext",
            *(f"a{number}\t{text}" for number, text in enumerate(sentences[60:90], 40)),
        ],
        "labelled.tsv": [
            "premise\thypothesis\tlabel",
            *(f"{pair}\t{n % 3}" for n, pair in enumerate(pairs * 2)),
        ],
    }.items():
        (made / name).write_text("\n".join(lines) + "\n", encoding="utf-8")


def start_of(name: str, root: Path) -> Path:
    """Return the folder that a command starts in, what comes before it done."""
    made = root / f"start-{name}"
    if not made.exists():
        # where the kills are done, so that no path is another one
        shutil.copytree(root / "inputs", root / "here")
        for words in CASES[name].before:
            code, _, err = run(words, root / "here")
            assert code == 0, f"{' '.join(words)}: {err}"
        (root / "here").rename(made)
    return made


def unbroken(name: str, root: Path) -> Unbroken:
    """Return what unbroken runs of a command leave, print and take."""
    case, folder, states, outs = CASES[name], root / "here", [], []
    load_what(case.words, start_of(name, root), root)
    shutil.copytree(start_of(name, root), folder)
    seconds = events = 0
    for _ in range(2 if case.twice else 1):
        began = time.monotonic()
        code, out, err = run(case.words, folder, watch=lambda: count_events(root / "events"))
        seconds = max(seconds, time.monotonic() - began)
        events = max(events, (root / "events").stat().st_size)
        assert code == 0 and "Traceback" not in err, f"{' '.join(case.words)}: {err}"
        states.append(left(folder))
        outs.append(out)
    shutil.rmtree(folder)
    return Unbroken(states, outs, seconds, events)


def load_what(words, start: Path, root: Path) -> None:
    """Import whatever a command imports, so that its forks need not."""
    shutil.copytree(start, root / "here")
    code, _, err = run(
        words, root / "here", at_end=lambda: (root / "modules").write_text("\n".join(sys.modules))
    )
    assert code == 0, f"{' '.join(words)}: {err}"
    for module in (root / "modules").read_text().splitlines():
        with contextlib.suppress(Exception):
            importlib.import_module(module)
    gc.collect()
    gc.freeze()  # what is here already is not walked, and so not copied, in every fork
    shutil.rmtree(root / "here")


def real_seconds(name: str, root: Path) -> float:
    """Return how long an unbroken run takes in a process of its own, from its first moment."""
    shutil.copytree(start_of(name, root), root / "here")
    process = launch(CASES[name].words, root / "here", real=True)
    while not can_answer(process):
        time.sleep(0.001)
    began = time.monotonic()
    code = wait(process)
    assert code == 0, said(root / "here", "err").read_text()
    shutil.rmtree(root / "here")
    return time.monotonic() - began


@dataclass(frozen=True)
class Kill:
    """Which signal is sent when: before a file event, or so many seconds after the command can
    answer.
    """

    command: str
    number: int  #: of the command's kills
    signal: str
    event: int = 0
    moment: float = 0.0
    real: bool = False  #: a process of its own


def broken(kill: Kill, folder: Path, whole: Unbroken) -> str:
    """Kill a command once and run it again; return which promise was broken, or nothing."""
    case, sent = CASES[kill.command], SIGNALS[kill.signal]
    if kill.event:
        code = wait(launch(case.words, folder, watch=lambda: die_before_event(kill.event, sent)))
    else:
        process = launch(case.words, folder, real=kill.real)
        while not can_answer(process):
            time.sleep(0.0005)
        time.sleep(kill.moment)
        os.kill(process, sent)
        code = wait(process)
    heard = said(folder, "err").read_text(errors="replace")
    if code not in (0, CODES[kill.signal]):
        return f"ended with {code}: {heard[-300:]}"
    if code in (130, 143) and not heard.strip().startswith(INTERRUPTED):
        return f"ended with {code} and said {heard[-300:]!r}"
    if code in (130, 143) and (kept := [str(path) for path in folder.rglob("*.tmp")]):
        return f"ended with {code} and left {kept}"
    codes = {0, case.done} if case.done else {0}
    code, out, heard = run((*case.words, *case.again), folder)
    if code == 2 and case.resume:
        code, out, heard = run((*case.words, *case.resume), folder)
    if code not in codes:
        return f"run again: ended with {code}: {heard[-300:]}"
    if code == 0 and out not in whole.outs:
        return f"run again: printed {out[-300:]!r}, an unbroken run {whole.outs[0][-300:]!r}"
    found = {name: content for name, content in left(folder).items() if not _may_stay(name, kill)}
    differing = [difference(state, found) for state in whole.states]
    return f"run again: not what an unbroken run leaves: {differing[0]}" if all(differing) else ""


def _may_stay(name: str, kill: Kill) -> bool:
    return kill.signal == "KILL" and LEFTOVER.search(name) is not None


def draw_kill(name: str, number: int, whole: Unbroken, arguments, root: Path) -> Kill:
    """Draw a command's kill of that number; the same whenever it is asked for."""
    draw = random.Random(f"{arguments.seed} {name} {number}")
    sent, share = draw.choice(sorted(arguments.signals.split(","))), draw.uniform(0, 1.02)
    if arguments.real_every and draw.randrange(arguments.real_every) == 0:
        return Kill(name, number, sent, moment=share * _real(name, root), real=True)
    if number % 2 and whole.events:
        return Kill(name, number, sent, event=draw.randint(1, whole.events))
    return Kill(name, number, sent, moment=share * whole.seconds)


_real = functools.cache(real_seconds)


def options() -> argparse.Namespace:
    """Return what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=1000, help="in all, spread over the commands")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default=",".join(CASES))
    parser.add_argument("--signals", default=",".join(SIGNALS))
    parser.add_argument("--real-every", type=int, default=20)
    parser.add_argument(
        "--log", type=Path, help="a line for every kill; those in it are not done again"
    )
    parser.add_argument("--keep", type=Path, help="folder for what the first broken kill left")
    return parser.parse_args()


def main() -> None:
    """Kill, count, print."""
    arguments = options()
    names = arguments.only.split(",")
    rows = (
        [json.loads(line) for line in arguments.log.read_text().splitlines()]
        if arguments.log and arguments.log.exists()
        else []
    )
    known = {(row["command"], row["number"]) for row in rows}
    start_hub()
    from promptcli.cli import command_line

    with tempfile.TemporaryDirectory() as place:
        root = Path(place)
        make_inputs(root)
        command_line.command()  # made once, not in every fork
        wholes: dict[str, Unbroken] = {}
        for name, number in itertools.islice(turns(names), arguments.kills):
            if (name, number) in known:
                continue
            if name not in wholes:
                wholes[name] = unbroken(name, root)
                print(
                    f"{name}: {wholes[name].seconds:.2f} s, {wholes[name].events} file events",
                    flush=True,
                )
            kill = draw_kill(name, number, wholes[name], arguments, root)
            shutil.copytree(start_of(name, root), root / "here")
            why = broken(kill, root / "here", wholes[name])
            rows.append({**vars(kill), "broken": why})
            if arguments.log:
                with arguments.log.open("a") as log:
                    log.write(json.dumps(rows[-1]) + "\n")
            if why:
                print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
                if arguments.keep and not arguments.keep.exists():
                    shutil.copytree(root / "here", arguments.keep)
            shutil.rmtree(root / "here")
    print_counts(rows)
    sys.exit(1 if any(row["broken"] for row in rows) else 0)


def turns(names):
    """Yield commands, each with the number of its kill, without end."""
    for turn in itertools.count():
        yield from ((name, turn) for name in names if not CASES[name].long)
        yield from ((name, turn // 3) for name in names if CASES[name].long and turn % 3 == 0)


def print_counts(rows) -> None:
    """Print how many kills there were of each kind, and how many broke a promise."""
    kinds = Counter(
        "own process" if row["real"] else "file event" if row["event"] else "time" for row in rows
    )
    print(f"{len(rows)} kills, {sum(bool(row['broken']) for row in rows)} broken promises")
    for counts in (
        kinds,
        Counter(row["signal"] for row in rows),
        Counter(row["command"] for row in rows),
    ):
        print(", ".join(f"{name} {count}" for name, count in sorted(counts.items())))


if __name__ == "__main__":
    main()
