"""Sentences per second and Spearman of one model in promptcli and in its peers, in one run.

    python benchmarks/peers.py MODEL CORPUS --sts sts-dev.csv --peers PYTHON --folder FOLDER
    [--rounds 3] [--short]

MODEL is a folder of sentence-transformers. PYTHON has sentence-transformers, optimum-intel (with
nncf) and fastembed, and need not have promptcli; a program that is missing is named and left out.
Every program is a process of its own, all with the same number of threads and inputs of up to 512
tokens, and computes in turn while the others sleep. FOLDER keeps graphs: what the first run makes,
the next finds. 8 bits are calibrated on 300 lines of CORPUS, by all.

Texts: STS-B development sentences, lines of CORPUS, and its lines joined to some 500 tokens.
"""

import argparse
import csv
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

MOST, CALIBRATION = 512, 300
PEER = "sentence-transformers"
Encode = Callable[[list[str]], "object"]


def texts_of(corpus: Path, sts: Path, *, short: bool) -> dict[str, list[str]]:
    """Return the texts by kind; those of ``calibrate`` are not among the others."""
    share = 5 if short else 1
    with corpus.open(encoding="utf-8") as file:
        lines = [line.strip() for line, _ in zip(file, range(4000), strict=False)]
    with sts.open(encoding="utf-8") as file:
        rows = list(csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    first, second = ([row[column] for row in rows] for column in (5, 6))
    long = [
        " ".join(lines[start : start + 16]) for start in range(2000, 2000 + 16 * 40 // share, 16)
    ]
    wiki = lines[CALIBRATION : CALIBRATION + 600 // share]
    both = [*first, *second]
    return {
        "calibrate": lines[:CALIBRATION],
        "sts": both[: 900 // share],
        "wiki": wiki,
        "long": long,
        "pairs": both,
    }


def ours(folder: Path, backend: str, dtype: str) -> Callable[[Path, dict[str, list[str]]], Encode]:
    def build(model: Path, texts: dict[str, list[str]]) -> Encode:
        os.environ["PROMPTCLI_HOME"] = str(folder / "promptcli")
        import promptcli as pc

        options = {"backend": backend, "dtype": dtype, "calibration": texts["calibrate"]}
        return pc.load(model, device="cpu", **options).encode

    return build


def sentence_transformers(
    folder: Path, kind: str
) -> Callable[[Path, dict[str, list[str]]], Encode]:
    def build(model: Path, texts: dict[str, list[str]]) -> Encode:
        from sentence_transformers import SentenceTransformer

        options: dict[str, object] = {}
        if kind in ("openvino", "int8"):
            model = shutil.copytree(model, folder / "openvino", dirs_exist_ok=True)
            options = {"backend": "openvino"}
            if not list(model.glob("openvino/openvino_model.xml")):
                SentenceTransformer(str(model), device="cpu", **options).save_pretrained(str(model))
        quantised = "openvino_model_qint8_quantized.xml"
        if kind == "int8":
            if not list(model.glob(f"openvino/{quantised}")):
                from sentence_transformers import export_static_quantized_openvino_model as export

                data = folder / "calibration"
                data.mkdir(exist_ok=True)
                rows = "".join(json.dumps({"text": text}) + "\n" for text in texts["calibrate"])
                (data / "train.jsonl").write_text(rows, encoding="utf-8")
                plain = SentenceTransformer(str(model), device="cpu", **options)
                export(plain, None, str(model), str(data), "default", "train", "text")
            options["model_kwargs"] = {"file_name": f"openvino/{quantised}"}
        encoder = SentenceTransformer(str(model), device="cpu", **options)
        if kind == "bfloat16":
            encoder = encoder.bfloat16()
        return lambda lines: encoder.encode(lines, show_progress_bar=False)

    return build


def fastembed(folder: Path) -> Callable[[Path, dict[str, list[str]]], Encode]:
    def build(model: Path, _: dict[str, list[str]]) -> Encode:
        from fastembed import TextEmbedding
        from fastembed.common.model_description import ModelSource, PoolingType

        TextEmbedding.add_custom_model(
            model="a/model", pooling=PoolingType.DISABLED, normalization=False, dim=384,
            sources=ModelSource(hf="a/model"), model_file="model.onnx",
        )  # fmt: skip
        encoder = TextEmbedding("a/model", specific_model_path=str(folder / "onnx"))
        return lambda lines: list(encoder.embed(lines))

    return build


def programs(
    folder: Path,
) -> dict[str, tuple[bool, Callable[[Path, dict[str, list[str]]], Encode]]]:
    """Return each program: whether it runs in the peers' Python, and what opens its encode
    function.
    """
    return {
        PEER: (True, sentence_transformers(folder, "torch")),
        f"{PEER}, bfloat16": (True, sentence_transformers(folder, "bfloat16")),
        f"{PEER}, openvino": (True, sentence_transformers(folder, "openvino")),
        f"{PEER}, openvino quantised": (True, sentence_transformers(folder, "int8")),
        "fastembed (our ONNX graph)": (True, fastembed(folder)),
        "promptcli float32": (False, ours(folder, "torch", "float32")),
        "promptcli bfloat16": (False, ours(folder, "torch", "bfloat16")),
        "promptcli openvino float32": (False, ours(folder, "openvino", "float32")),
        "promptcli openvino bfloat16": (False, ours(folder, "openvino", "bfloat16")),
        "promptcli openvino-int8": (False, ours(folder, "openvino-int8", "int8")),
    }


def work(name: str, folder: Path, arguments: argparse.Namespace) -> None:
    """Open one program; for each kind of texts that is read, encode them and write the seconds."""
    answers, sys.stdout = sys.stdout, sys.stderr  # whatever a library prints
    texts = texts_of(arguments.corpus, arguments.sts, short=arguments.short)
    import numpy as np
    from scipy.stats import spearmanr

    encode = programs(folder)[name][1](folder / "model", texts)
    for kind in ("sts", "wiki", "long"):
        encode(texts[kind][:20])
    print("ready", file=answers, flush=True)
    for line in sys.stdin:
        kind = line.strip()
        start, before = time.perf_counter(), time.process_time()
        vectors = np.asarray(encode(texts[kind]), dtype=np.float64)
        answer = [time.perf_counter() - start, time.process_time() - before]
        if kind == "pairs":
            vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
            with arguments.sts.open(encoding="utf-8") as file:
                gold = [
                    float(row[4])
                    for row in csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
                ]
            cosines = (vectors[: len(gold)] * vectors[len(gold) :]).sum(1)
            answer.append(100 * float(spearmanr(cosines, gold).statistic))
        print(json.dumps(answer), file=answers, flush=True)


def prepare(original: Path, folder: Path) -> None:
    """Copy the model with its longest input set, and export the graph for fastembed."""
    model = shutil.copytree(original, folder / "model", dirs_exist_ok=True)
    (model / "sentence_bert_config.json").write_text(
        json.dumps({"max_seq_length": MOST, "do_lower_case": False})
    )
    tokenizer = json.loads((model / "tokenizer.json").read_text(encoding="utf-8"))
    tokenizer["truncation"] = tokenizer["padding"] = None  # the model's own may cut at 128
    (model / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    if not (folder / "onnx").exists():
        export = [
            sys.executable,
            "-m",
            "promptcli",
            "export",
            str(model),
            "-o",
            str(folder / "onnx"),
            "--to",
            "onnx",
        ]
        subprocess.run(export, check=False)  # without it fastembed is left out


def start(arguments: argparse.Namespace, folder: Path) -> dict[str, subprocess.Popen]:
    """Return the processes of the programs that could be opened."""
    environment = os.environ | {
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_OFFLINE": "1",
        "NNCF_CI": "1",
        "CI": "true",
    }
    running = {}
    for name, (of_peers, _) in programs(folder).items():
        if name != PEER and arguments.only and not any(word in name for word in arguments.only):
            continue
        command = [arguments.peers if of_peers else sys.executable, *sys.argv, "--program", name]
        errors = folder / "errors.txt"
        with errors.open("w") as file:
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                text=True,
                env=environment,
            )
        if process.stdout.readline() == "ready\n":
            running[name] = process
        else:
            print(
                f"{name}: left out, {errors.read_text(errors='replace').strip().splitlines()[-1:]}",
                flush=True,
            )
    return running


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--sts", type=Path, required=True)
    parser.add_argument("--peers", default=sys.executable)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--short", action="store_true", help="a fifth of the texts, to try it out")
    parser.add_argument(
        "--only", nargs="*", help="words of the programs to run; the first peer always does"
    )
    parser.add_argument("--program", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    folder: Path = arguments.folder.resolve()
    if arguments.program:
        work(arguments.program, folder, arguments)
        return
    prepare(arguments.model, folder)
    running = start(arguments, folder)

    def ask(name: str, kind: str) -> list[float]:
        running[name].stdin.write(f"{kind}\n")
        running[name].stdin.flush()
        return json.loads(running[name].stdout.readline())

    sizes = {
        kind: len(texts)
        for kind, texts in texts_of(arguments.corpus, arguments.sts, short=arguments.short).items()
    }
    kinds = ("sts", "wiki", "long")
    seconds = {(name, kind): [] for name in running for kind in kinds}
    for _ in range(arguments.rounds):
        for kind in kinds:
            for name in running:
                seconds[name, kind].append(ask(name, kind))
    print(
        f"{os.environ.get('OMP_NUM_THREADS', os.cpu_count())} threads each, load"
        f" {os.getloadavg()[0]:.1f}; sentences a second, times"
    )
    print(f"{PEER}'s; in brackets the same by processor time; Spearman on STS-B dev", flush=True)
    print("| program | STS-B lengths | Wikipedia | 500 tokens | Spearman |\n|---|---|---|---|---|")
    for name in running:
        cells = []
        for kind in kinds:
            wall, busy = (
                statistics.median(column) for column in zip(*seconds[name, kind], strict=True)
            )
            peer, peer_busy = (
                statistics.median(column) for column in zip(*seconds[PEER, kind], strict=True)
            )
            cells.append(f"{sizes[kind] / wall:,.0f}, {peer / wall:.2f} ({peer_busy / busy:.2f})")
        print(f"| {name} | {' | '.join(cells)} | {ask(name, 'pairs')[2]:.2f} |", flush=True)
    for process in running.values():
        process.stdin.close()
        process.wait()


if __name__ == "__main__":
    main()
