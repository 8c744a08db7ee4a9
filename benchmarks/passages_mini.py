r"""Train `mini` on titles and passages, beside the sentences that it was made of.

    python benchmarks/passages_corpus.py --data FOLDER --python SITE-PACKAGES -o passages.tsv
    python benchmarks/distillation_corpus.py --data FOLDER -o sentences.txt
    head -50000 passages.tsv | cut -f1 > titles.txt
    head -50000 passages.tsv | cut -f2 > bodies.txt
    promptcli embed titles.txt -m sentence-transformers/all-MiniLM-L6-v2 -o titles.npy
    promptcli embed bodies.txt -m sentence-transformers/all-MiniLM-L6-v2 -o bodies.npy
    python benchmarks/passages_mini.py --passages passages.tsv --titles titles.npy \
      --bodies bodies.npy --sentences sentences.txt --from mini-distilled --name mini-passages
    python benchmarks/ship.py mini-passages mini

A step has the loss of `train distill` on titles and passages, with the teacher as guide of a
contrastive part in both directions, and the distances of sentences to the vectors that the model
had for them before. Each of ``RUNS`` starts from the weights of the one before. The result lies
three quarters of the way from the weights at the start to the mean of those of the runs (Wortsman
et al. 2022). States beside the passages continue a run that was cut off.
"""

import argparse
import dataclasses
import hashlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from distillation_corpus import lines
from numpy.typing import NDArray
from passages_corpus import training_parser
from torch import Tensor
from torch.nn import functional
from transformers import AutoTokenizer, BertConfig, BertModel

import promptcli
from promptcli.data.vectors.precision import unit
from promptcli.models.entries import Entry
from promptcli.models.loading import open_registry
from promptcli.training.objectives.contrastive import contrastive_loss, nearer_than_positive
from promptcli.training.objectives.distillation import (
    rotation_between,
    similarity_distance,
    vector_distance,
)
from promptcli.training.objectives.similarity import Similarity

Vectors = NDArray[np.float32]
Ids = list[list[int]]

_PREFIX = "backbone."
_TEMPLATE = 'This sentence : "{}" means [MASK] .'
_PASSAGE_WORDS, _SENTENCE_WORDS, _SENTENCE_TOKENS = 64, 40, 64
_SENTENCES = 70_000
_SAMPLE = 1000  # titles by which the teacher's space is turned
_PAIRS_A_STEP, _SENTENCES_A_STEP = 96, 128
_PAIRS_JITTER, _SENTENCES_JITTER = 12, 4  # tokens by which lengths of a batch may differ
_WARMUP, _CLIP = 0.08, 1.0
_SIMILARITY_WEIGHT = 5.0
_SENTENCES_SIMILARITY_WEIGHT = 20.0
_CONTRASTIVE_WEIGHT, _TEMPERATURE = 0.2, 0.05
_WAY = 0.75
_KEPT_EVERY = 10  # steps


@dataclasses.dataclass(frozen=True)
class Run:
    """Settings of a run: rows of the passages, length, learning rate, weight of the sentences."""

    rows: int
    steps: int
    learning_rate: float
    sentences_weight: float


RUNS = (
    Run(rows=40_000, steps=900, learning_rate=4e-4, sentences_weight=1.0),
    Run(rows=50_000, steps=500, learning_rate=3e-4, sentences_weight=1.5),
)


class Student:
    """The encoder: the mask's state in the template."""

    def __init__(self, weights: dict[str, Tensor]) -> None:
        shipped = Path(promptcli.__file__).parent / "shipped" / "mini-bert"
        config = BertConfig.from_pretrained(shipped)
        config.hidden_dropout_prob = config.attention_probs_dropout_prob = 0.0
        self.tokenizer = AutoTokenizer.from_pretrained(shipped)
        self.bert = BertModel(config, add_pooling_layer=False)
        self.bert.load_state_dict(weights, strict=False)

    def ids(self, texts: list[str], words: int) -> Ids:
        """Return the ids of texts in the template, each cut to some words."""
        short = [" ".join(text.replace("[MASK]", "").split()[:words]) for text in texts]
        ids: Ids = self.tokenizer([_TEMPLATE.format(text) for text in short])["input_ids"]
        return ids

    def vectors(self, ids: Ids) -> Tensor:
        """Return unit vectors (n, d)."""
        longest = max(map(len, ids))
        padded = torch.zeros(len(ids), longest, dtype=torch.long)
        attention = torch.zeros_like(padded)
        for row, each in enumerate(ids):
            padded[row, : len(each)] = torch.tensor(each)
            attention[row, : len(each)] = 1
        states = self.bert(input_ids=padded, attention_mask=attention).last_hidden_state
        slots = (padded == self.tokenizer.mask_token_id).float().argmax(1)
        return functional.normalize(states[torch.arange(len(ids)), slots], dim=1)


def batches(
    lengths: NDArray[np.int64], size: int, jitter: int, draw: np.random.Generator
) -> Iterator[NDArray[np.int64]]:
    """Yield rows of similar lengths, epoch after epoch."""
    while True:
        rows = np.argsort(lengths + draw.random(len(lengths)) * jitter)
        epoch = [rows[start : start + size] for start in range(0, len(rows) - size + 1, size)]
        draw.shuffle(epoch)
        yield from epoch


@dataclasses.dataclass(frozen=True)
class Texts:
    """What a run learns from."""

    titles: Ids
    passages: Ids
    taught_titles: Vectors
    taught_passages: Vectors
    turn: Tensor  #: The map from the teacher's vectors into the student's space.
    sentences: Ids


def texts_of(before: Student, given: argparse.Namespace) -> Texts:
    """Read and tokenise the texts, and find the teacher's place in the student's space."""
    taught_titles, taught_passages = (
        unit(np.load(path).astype(np.float32)) for path in (given.titles, given.bodies)
    )
    rows = [line.split("\t") for line in lines(given.passages)[: len(taught_titles)]]
    titles = before.ids([title for title, _ in rows], words=_PASSAGE_WORDS)
    sentences = lines(given.sentences)
    drawn = np.random.default_rng(1).permutation(len(sentences))[:_SENTENCES]
    ids = before.ids([sentences[row] for row in drawn], words=_SENTENCE_WORDS)

    taught = np.concatenate([taught_titles, taught_passages])
    sample = np.random.default_rng(0).permutation(len(titles))[:_SAMPLE]
    with torch.no_grad():
        own = before.vectors([titles[row] for row in sample]).numpy()
    turn = rotation_between(taught.T @ taught / len(taught), taught_titles[sample], own)
    return Texts(
        titles,
        before.ids([passage for _, passage in rows], words=_PASSAGE_WORDS),
        taught_titles,
        taught_passages,
        torch.from_numpy(turn.astype(np.float32)),
        [each for each in ids if len(each) <= _SENTENCE_TOKENS],
    )


def pairs_loss(student: Student, texts: Texts, rows: NDArray[np.int64]) -> Tensor:
    """Return the loss of titles and their passages."""
    titles = student.vectors([texts.titles[row] for row in rows])
    passages = student.vectors([texts.passages[row] for row in rows])
    taught_titles = torch.from_numpy(texts.taught_titles[rows])
    taught_passages = torch.from_numpy(texts.taught_passages[rows])
    own = torch.cat([titles, passages])
    taught = torch.cat([taught_titles, taught_passages])
    similarity = Similarity(_TEMPERATURE)
    there = contrastive_loss(
        titles, passages, similarity, excluded=nearer_than_positive(taught_titles, taught_passages)
    )
    back = contrastive_loss(
        passages, titles, similarity, excluded=nearer_than_positive(taught_passages, taught_titles)
    )
    return (
        vector_distance(own, taught @ texts.turn)
        + _SIMILARITY_WEIGHT * similarity_distance(own, taught)
        + _CONTRASTIVE_WEIGHT * (there + back) / 2
    )


def sentences_loss(student: Student, before: Student, ids: Ids) -> Tensor:
    """Return the distance of sentences' vectors to those of before."""
    own = student.vectors(ids)
    with torch.no_grad():
        known = before.vectors(ids)
    similarity = _SENTENCES_SIMILARITY_WEIGHT * similarity_distance(own, known)
    return vector_distance(own, known) + similarity


def learn(student: Student, before: Student, texts: Texts, run: Run, state: Path) -> None:
    """Train the student, from the state of a run that was cut off if there is one."""
    optimizer = torch.optim.AdamW(student.bert.parameters(), weight_decay=0.01)
    done = 0
    if state.exists():
        kept = torch.load(state, weights_only=True)
        student.bert.load_state_dict(kept["student"])
        optimizer.load_state_dict(kept["optimizer"])
        done = kept["step"]
    draw = np.random.default_rng(done)
    lengths = np.array([len(each) for each in texts.passages[: run.rows]])
    pairs = batches(lengths, _PAIRS_A_STEP, _PAIRS_JITTER, draw)
    lengths = np.array([len(each) for each in texts.sentences])
    sentences = batches(lengths, _SENTENCES_A_STEP, _SENTENCES_JITTER, draw)
    for step in range(done + 1, run.steps + 1):
        rate = min(1, step / (_WARMUP * run.steps)) * (1 - step / (run.steps + 1))
        optimizer.param_groups[0]["lr"] = run.learning_rate * rate
        optimizer.zero_grad()
        loss = pairs_loss(student, texts, next(pairs))
        loss.backward()
        known = sentences_loss(student, before, [texts.sentences[row] for row in next(sentences)])
        (run.sentences_weight * known).backward()
        torch.nn.utils.clip_grad_norm_(student.bert.parameters(), _CLIP)
        optimizer.step()
        if step % _KEPT_EVERY == 0 or step == run.steps:
            print(f"step {step}: {loss.item():.4f}, sentences {known.item():.4f}", flush=True)
            kept = {"student": student.bert.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save({**kept, "step": step}, state)


def main() -> None:
    """Put the model into the registry."""
    parser = training_parser(__doc__, start="mini")
    parser.add_argument("--name", required=True)
    given = parser.parse_args()
    registry = open_registry()
    entry = registry.load(given.start)
    start = {name.removeprefix(_PREFIX): each.float() for name, each in entry.tensors.items()}
    student, before = Student(start), Student(start)
    before.bert.eval()
    texts = texts_of(before, given)
    learned = []
    for number, run in enumerate(RUNS, 1):
        learn(student, before, texts, run, given.passages.with_name(f"run-{number}.pt"))
        learned.append({name: each.clone() for name, each in student.bert.state_dict().items()})
    registry.save(mixed(entry, given, learned))


def mixed(entry: Entry, given: argparse.Namespace, learned: list[dict[str, Tensor]]) -> Entry:
    """Return the model between the weights of before and the mean of those of the runs."""
    tensors = {}
    for name, before in entry.tensors.items():
        mean = sum(each[name.removeprefix(_PREFIX)] for each in learned) / len(learned)
        tensors[name] = torch.lerp(before.float(), mean, _WAY).half()
    trained = {
        "method": "distill",
        "supervised": True,
        "source": f"{given.passages.name} and {given.sentences.name}",
        "data": hashlib.sha256(given.passages.read_bytes()).hexdigest(),
        "examples": max(run.rows for run in RUNS),
        "batch_size": _PAIRS_A_STEP,
        "seed": 0,
        "started_from": entry.name,
        "runs_of_script": [dataclasses.asdict(run) for run in RUNS],
        "way": _WAY,
        "before": entry.provenance["trained"],
    }
    provenance = {**entry.provenance, "trained": trained}
    return dataclasses.replace(
        entry, name=given.name, tensors=tensors, provenance=provenance, scores=[]
    )


if __name__ == "__main__":
    main()
