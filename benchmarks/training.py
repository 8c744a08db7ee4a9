"""Training steps next to plain ones: sentences per second, peak memory, same weights, sentences,
batch, machine, run.

    python benchmarks/training.py CORPUS [--models NAMES] [--batch 128] [--steps 12] [--rounds 3]
    [--dtype float32] [--runs NAMES]

``dcpcse`` next to ``peft``: prefix tuning by peft on the transformers model, both views in one
padded batch, the same head, loss, clipping and AdamW. ``simcse`` next to ``plain simcse``
(transformers alone) and to sentence-transformers' own trainer with MultipleNegativesRankingLoss,
each sentence its own positive, `[CLS]` without a head. ``promptbert`` next to these by time per
token of the sentence views (template tokens counted, the bias's not). All take
the steps of torch's fused AdamW, as promptcli does and sentence-transformers' trainer does. Each
run is a process of its own, so that its peak resident set is its own; rounds are interleaved,
medians printed: examples a second by the clock, and a processor second, which other programs on the
machine change less. A peer that is not installed is left out. The first two steps of each are not
counted. ``compiled simcse`` (torch.compile) runs if ``--runs`` names it.
"""

import argparse
import importlib.util
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"

import numpy as np

_WARM, _LENGTH, _TEMPERATURE, _PREFIX = 2, 32, 0.05, 16

Gradients = Callable[[list[str]], None]


def ours(
    name: str, folder: str, batch: int, mixed: bool
) -> tuple[Gradients, list, Callable[[list[str]], int]]:
    """Return what puts gradients in place, the parameters, and how many tokens a batch has."""
    from promptcli.backbones.by_name import load_backbone
    from promptcli.training.methods import find_method
    from promptcli.training.methods.method import ConfiguredMethod
    from promptcli.training.objectives import find_objective
    from promptcli.training.step import Processes, TrainingStep
    from promptcli.training.trainable_encoder import TrainableEncoder

    method = find_method(name.removeprefix(_COMPILED), supervised=False)
    prefix = {"prefix_length": _PREFIX} if name == "dcpcse" else {}
    compiled = name.startswith(_COMPILED)
    settings = method.mini_bert_settings.replace(
        batch_size=batch, max_length=_LENGTH, compile=compiled, **prefix
    )
    backbone = load_backbone(folder)
    configured = ConfiguredMethod(method, settings, folder, backbone.provenance.family)
    learner = TrainableEncoder(configured, backbone, find_objective(method))
    step = TrainingStep(learner, Processes(mixed=mixed))
    view = learner.template_encoders[0]

    def tokens(lines: list[str]) -> int:
        tokenize = learner.backbone.tokenizer.encode_ragged
        return 2 * int(view.template.inputs(lines, tokenize, view.max_length).ids.lengths.sum())

    return (
        lambda lines: [step.gradients(0, step.tokenize([lines]))] and None,
        list(learner.trainable().values()),
        tokens,
    )


def plain(
    name: str, folder: str, batch: int, mixed: bool
) -> tuple[Gradients, list, Callable[[list[str]], int]]:
    """Return the same for transformers alone, with peft where a prefix is learned."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModel.from_pretrained(folder, add_pooling_layer=False, dtype=torch.float32)
    width = model.config.hidden_size
    if name == "peft":
        import peft

        config = peft.PrefixTuningConfig(task_type="FEATURE_EXTRACTION", num_virtual_tokens=_PREFIX)
        model = peft.get_peft_model(model, config)
    model.train()
    head = torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.Tanh())
    learning = [one for one in [*model.parameters(), *head.parameters()] if one.requires_grad]

    def gradients(lines: list[str]) -> None:
        inputs = tokenizer(
            lines * 2, padding=True, truncation=True, max_length=_LENGTH, return_tensors="pt"
        )
        for one in learning:
            one.grad = None
        with torch.autocast("cpu", torch.bfloat16, enabled=mixed):
            states = model(
                input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"]
            ).last_hidden_state
            vectors = head(states[:, 0]).float()
        first, second = torch.nn.functional.normalize(vectors, dim=1).chunk(2)
        loss = torch.nn.functional.cross_entropy(
            first @ second.T / _TEMPERATURE, torch.arange(len(lines))
        )
        loss.backward()

    def tokens(lines: list[str]) -> int:
        return 2 * sum(map(len, tokenizer(lines, truncation=True, max_length=_LENGTH)["input_ids"]))

    return gradients, learning, tokens


_COMPILED = "compiled "  # before the name of a method
RUNS = {"peft": plain, "dcpcse": ours, "plain simcse": plain, "simcse": ours, "promptbert": ours}
_PEER = "sentence-transformers"


def now() -> np.ndarray:
    """Return the seconds by the clock and those of the processor."""
    return np.array([time.perf_counter(), time.process_time()])


def our_loop(
    name: str, folder: str, lines: list[str], batch: int, mixed: bool
) -> tuple[list[np.ndarray], int, float]:
    """Return the seconds of each step, see ``now``, the tokens of all, and MiB resident before
    the first.
    """
    import torch

    gradients, learning, tokens = RUNS.get(name, ours)(name, folder, batch, mixed)
    optimizer = torch.optim.AdamW(learning, lr=1e-5, fused=True)
    loaded = _peak()
    seconds, count = [], 0
    for first in range(0, len(lines), batch):
        part = lines[first : first + batch]
        start = now()
        gradients(part)
        torch.nn.utils.clip_grad_norm_(learning, 1.0)
        optimizer.step()
        seconds.append(now() - start)
        if first >= _WARM * batch:
            count += tokens(part)
    return seconds, count, loaded


def peer_loop(
    folder: str, lines: list[str], batch: int, mixed: bool
) -> tuple[list[np.ndarray], int, float]:
    """Return the same for sentence-transformers' trainer."""
    from datasets import Dataset
    from sentence_transformers import (
        SentenceTransformer,
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
    )
    from sentence_transformers.losses import MultipleNegativesRankingLoss
    from sentence_transformers.models import Pooling, Transformer
    from transformers import TrainerCallback

    class Clock(TrainerCallback):
        """When each step ended; the first one begins with the training."""

        ends: list[np.ndarray]

        def on_train_begin(self, *_: object, **__: object) -> None:
            self.ends = [now()]

        def on_step_end(self, *_: object, **__: object) -> None:
            self.ends.append(now())

    body = Transformer(folder, max_seq_length=_LENGTH)
    pooling = Pooling(body.get_embedding_dimension(), pooling_mode="cls")
    model = SentenceTransformer(modules=[body, pooling], device="cpu").float()  # stored in float16
    loaded = _peak()
    clock = Clock()
    with tempfile.TemporaryDirectory() as output:
        SentenceTransformerTrainer(
            model=model,
            args=SentenceTransformerTrainingArguments(
                output_dir=output,
                max_steps=len(lines) // batch,
                per_device_train_batch_size=batch,
                learning_rate=1e-5,
                save_strategy="no",
                logging_strategy="no",
                report_to="none",
                disable_tqdm=True,
                use_cpu=True,
                bf16=mixed,
            ),
            train_dataset=Dataset.from_dict({"anchor": lines, "positive": lines}),
            loss=MultipleNegativesRankingLoss(model, scale=1 / _TEMPERATURE),
            callbacks=[clock],
        ).train()
    seconds = list(np.diff(clock.ends, axis=0))
    # the trainer shuffles: tokens of the steps that count are their share of all
    rows = model.tokenizer(lines, truncation=True, max_length=_LENGTH)["input_ids"]
    share = 1 - _WARM / len(seconds)
    return seconds, round(2 * share * sum(map(len, rows))), loaded


def _peak() -> float:
    """Return the highest resident set of this process so far, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def one_run(name: str, folder: str, lines: list[str], batch: int, mixed: bool) -> None:
    """Time steps in this process and print what came of it."""
    if name == _PEER:
        every, count, loaded = peer_loop(folder, lines, batch, mixed)
    else:
        every, count, loaded = our_loop(name, folder, lines, batch, mixed)
    seconds = np.array(every[_WARM:])
    peak = _peak()
    by_clock, by_processor = (batch / np.median(seconds, axis=0)).tolist()
    token_us = 1e6 * float(seconds[:, 0].sum()) / count
    print(
        json.dumps(
            {
                "rate": by_clock,
                "processor_rate": by_processor,
                "token_us": token_us,
                "peak": peak,
                "loaded": loaded,
            }
        )
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--models", default="mini-bert")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--runs", default=",".join((*RUNS, _PEER)))
    parser.add_argument("--run", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    with arguments.corpus.open(encoding="utf-8") as file:
        lines = [next(file).strip() for _ in range(arguments.batch * arguments.steps)]
    if arguments.run:
        name, folder = arguments.run.split("=")
        one_run(name, folder, lines, arguments.batch, arguments.dtype == "bfloat16")
        return
    from shapes import SHIPPED_BACKBONES, random_backbone

    needs = {"peft": "peft", _PEER: "sentence_transformers"}
    names = [
        name
        for name in arguments.runs.split(",")
        if name not in needs or importlib.util.find_spec(needs[name])
    ]
    for model in arguments.models.split(","):
        with tempfile.TemporaryDirectory() as temporary:
            folder = (
                SHIPPED_BACKBONES[model]
                if model in SHIPPED_BACKBONES
                else random_backbone(model, Path(temporary))
            )
            found: dict[str, list[dict]] = {name: [] for name in names}
            for number in range(arguments.rounds):
                for name in names:
                    ran = subprocess.run(
                        [sys.executable, *sys.argv, "--run", f"{name}={folder}"],
                        stdout=subprocess.PIPE,
                        check=True,
                        text=True,
                    )
                    found[name].append(json.loads(ran.stdout.splitlines()[-1]))
                    print(f"{model} round {number + 1} {name}: {found[name][-1]}", file=sys.stderr)
            for name, rows in found.items():
                median = {
                    key: round(statistics.median(row[key] for row in rows), 2) for key in rows[0]
                }
                print(
                    json.dumps(
                        {
                            "model": model,
                            "run": name,
                            "dtype": arguments.dtype,
                            "batch": arguments.batch,
                            **median,
                        }
                    )
                )


if __name__ == "__main__":
    main()
