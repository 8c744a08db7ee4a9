r"""Train `mini` on titles and passages, beside the sentences that it was made of.

    python benchmarks/passages_corpus.py --data FOLDER --python SITE-PACKAGES -o passages.tsv
    python benchmarks/distillation_corpus.py --data FOLDER -o sentences.txt
    head -50000 passages.tsv > rows.tsv
    cut -f1 rows.tsv > titles.txt
    cut -f2 rows.tsv > bodies.txt
    promptcli embed titles.txt -m sentence-transformers/all-MiniLM-L6-v2 -o titles.npy
    promptcli embed bodies.txt -m sentence-transformers/all-MiniLM-L6-v2 -o bodies.npy
    python benchmarks/passages_mini.py --passages rows.tsv --titles titles.npy \
      --bodies bodies.npy --sentences sentences.txt --from mini-distilled --name mini-passages
    python benchmarks/ship.py mini-passages mini

A step has the loss of `train distill` on titles and passages, with the teacher as guide of a
contrastive part in both directions, and the distances of sentences to the vectors that the model
had for them before. Each of ``RUNS`` starts from the weights of the one before. The result lies
three quarters of the way from the weights at the start to the mean of those of the runs (Wortsman
et al. 2022). States beside the passages continue a run that was cut off.

With `--runs 3` a third run is made, which does not ship. It adds the teacher's rankings of the
passages of a batch for each title and the other way round (cross-entropy of softmaxes), and a
contrastive part for a few words of each passage. It reads 110,000 rows more:

    python benchmarks/passages_corpus.py --data FOLDER --python SITE-PACKAGES \
      --sources dictionaries --most 60000 -o dictionaries.tsv
    python benchmarks/passages_corpus.py --data FOLDER --python SITE-PACKAGES \
      --guides FOLDER-OF-LINUX-DOC --sources guides --most 20000 -o guides.tsv
    (sed -n 50001,80000p passages.tsv; cat dictionaries.tsv guides.tsv) | shuf >> rows.tsv
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
from promptcli.training.objectives.contrastive import (
    Similarity,
    contrastive_loss,
    nearer_than_positive,
)
from promptcli.training.objectives.distillation import (
    rotation_between,
    similarity_distance,
    vector_distance,
)

Vectors = NDArray[np.float32]
Ids = list[list[int]]

_PREFIX = "backbone."
_TEMPLATE = 'This sentence : "{}" means [MASK] .'
_PASSAGE_WORDS, _PASSAGE_TOKENS = 64, 128
_SENTENCE_WORDS, _SENTENCE_TOKENS = 40, 64
_SPAN_WORDS = (2, 5)  # the fewest and the most
_AFTER_TEXT = 5  # tokens of the template: the quotation mark, means, [MASK], the period, [SEP]
_SENTENCES = 70_000
_SAMPLE = 1000  # titles by which the teacher's space is turned
_PAIRS_A_STEP = 96
_PAIRS_JITTER, _SENTENCES_JITTER = 12, 4  # tokens by which lengths of a batch may differ
_WARMUP, _CLIP = 0.08, 1.0
_SIMILARITY_WEIGHT = 5.0
_SENTENCES_SIMILARITY_WEIGHT = 20.0
_TEMPERATURE = 0.05
_WAY = 0.75
_KEPT_EVERY = 10  # steps
_ROWS_AT_ONCE = 256


@dataclasses.dataclass(frozen=True)
class Run:
    """Settings of a run: rows of the passages, sentences of a step, length, learning rate and the
    weights of its losses.
    """

    rows: int
    sentences: int
    steps: int
    learning_rate: float
    sentences_weight: float
    contrastive_weight: float
    rankings_weight: float
    spans_weight: float


#: The first two are those of the model that ships.
RUNS = (
    Run(40_000, 128, 900, 4e-4, 1.0, contrastive_weight=0.2, rankings_weight=0, spans_weight=0),
    Run(50_000, 128, 500, 3e-4, 1.5, contrastive_weight=0.2, rankings_weight=0, spans_weight=0),
    Run(
        160_000, 80, 1700, 4e-4, 1.5, contrastive_weight=0.1, rankings_weight=0.2, spans_weight=0.1
    ),
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

    def ids(self, texts: list[str], words: int, tokens: int) -> Ids:
        """Return the ids of texts in the template, each text cut to some words, and the whole to
        some tokens.
        """
        short = [" ".join(text.replace("[MASK]", "").split()[:words]) for text in texts]
        all_ids: Ids = self.tokenizer([_TEMPLATE.format(text) for text in short])["input_ids"]
        return [
            ids if len(ids) <= tokens else ids[: tokens - _AFTER_TEXT] + ids[-_AFTER_TEXT:]
            for ids in all_ids
        ]

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

    @torch.no_grad()
    def all_vectors(self, ids: Ids) -> Tensor:
        """Return unit vectors (n, d) of many texts, computed in the order of their lengths."""
        order = torch.tensor([len(each) for each in ids]).argsort()
        vectors = torch.empty(len(ids), self.bert.config.hidden_size)
        for rows in order.split(_ROWS_AT_ONCE):
            vectors[rows] = self.vectors([ids[row] for row in rows])
        return vectors


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
    words: list[list[str]]  #: Of the passages.
    sentences: Ids
    known_sentences: Tensor  #: The sentences' vectors of before.


def texts_of(before: Student, arguments: argparse.Namespace) -> Texts:
    """Read and tokenise the texts, and find the teacher's place in the student's space."""
    taught_titles, taught_passages = (
        unit(np.load(path).astype(np.float32)) for path in (arguments.titles, arguments.bodies)
    )
    rows = [line.split("\t") for line in lines(arguments.passages)[: len(taught_titles)]]
    titles = before.ids([title for title, _ in rows], _PASSAGE_WORDS, _PASSAGE_TOKENS)
    passages = [passage for _, passage in rows]
    sentences = lines(arguments.sentences)
    drawn = np.random.default_rng(1).permutation(len(sentences))[:_SENTENCES]
    drawn_sentences = [sentences[row] for row in drawn]
    sentence_ids = before.ids(drawn_sentences, _SENTENCE_WORDS, _SENTENCE_TOKENS)

    taught = np.concatenate([taught_titles, taught_passages])
    sample = np.random.default_rng(0).permutation(len(titles))[:_SAMPLE]
    own = before.all_vectors([titles[row] for row in sample]).numpy()
    turn = rotation_between(taught.T @ taught / len(taught), taught_titles[sample], own)
    return Texts(
        titles,
        before.ids(passages, _PASSAGE_WORDS, _PASSAGE_TOKENS),
        taught_titles,
        taught_passages,
        torch.from_numpy(turn.astype(np.float32)),
        [passage.split()[:_PASSAGE_WORDS] for passage in passages],
        sentence_ids,
        before.all_vectors(sentence_ids),
    )


def pairs_loss(
    student: Student, texts: Texts, rows: NDArray[np.int64], run: Run, draw: np.random.Generator
) -> Tensor:
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
    loss = (
        vector_distance(own, taught @ texts.turn)
        + _SIMILARITY_WEIGHT * similarity_distance(own, taught)
        + run.contrastive_weight * (there + back) / 2
    )
    if run.rankings_weight:
        cosines = titles @ passages.T / _TEMPERATURE
        taught_cosines = taught_titles @ taught_passages.T / _TEMPERATURE
        rankings = functional.cross_entropy(cosines, taught_cosines.softmax(1))
        rankings = rankings + functional.cross_entropy(cosines.T, taught_cosines.T.softmax(1))
        loss = loss + run.rankings_weight * rankings / 2
    if run.spans_weight:
        spans = [span_of(texts.words[row], draw) for row in rows]
        asking = student.vectors(student.ids(spans, _PASSAGE_WORDS, _SENTENCE_TOKENS))
        loss = loss + run.spans_weight * contrastive_loss(asking, passages, similarity)
    return loss


def span_of(words: list[str], draw: np.random.Generator) -> str:
    """Return a few neighbouring words."""
    fewest, most = _SPAN_WORDS
    count = min(int(draw.integers(fewest, most + 1)), len(words))
    first = int(draw.integers(0, len(words) - count + 1))
    return " ".join(words[first : first + count])


def sentences_loss(student: Student, texts: Texts, rows: NDArray[np.int64]) -> Tensor:
    """Return the distance of sentences' vectors to those of before."""
    own = student.vectors([texts.sentences[row] for row in rows])
    known = texts.known_sentences[torch.from_numpy(rows)]
    similarity = _SENTENCES_SIMILARITY_WEIGHT * similarity_distance(own, known)
    return vector_distance(own, known) + similarity


def learn(student: Student, texts: Texts, run: Run, state: Path) -> None:
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
    sentences = batches(lengths, run.sentences, _SENTENCES_JITTER, draw)
    for step in range(done + 1, run.steps + 1):
        rate = min(1, step / (_WARMUP * run.steps)) * (1 - step / (run.steps + 1))
        optimizer.param_groups[0]["lr"] = run.learning_rate * rate
        optimizer.zero_grad()
        loss = pairs_loss(student, texts, next(pairs), run, draw)
        loss.backward()
        known = sentences_loss(student, texts, next(sentences))
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
    parser.add_argument("--runs", type=int, default=2)
    arguments = parser.parse_args()
    registry = open_registry()
    entry = registry.load(arguments.start)
    start = {name.removeprefix(_PREFIX): each.float() for name, each in entry.tensors.items()}
    student, before = Student(start), Student(start)
    before.bert.eval()
    texts = texts_of(before, arguments)
    learned = []
    for number, run in enumerate(RUNS[: arguments.runs], 1):
        learn(student, texts, run, arguments.passages.with_name(f"run-{number}.pt"))
        learned.append({name: each.clone() for name, each in student.bert.state_dict().items()})
    registry.save(mixed(entry, arguments, learned))


def mixed(entry: Entry, arguments: argparse.Namespace, learned: list[dict[str, Tensor]]) -> Entry:
    """Return the model between the weights of before and the mean of those of the runs."""
    runs = RUNS[: arguments.runs]
    tensors = {}
    for name, before in entry.tensors.items():
        mean = sum(each[name.removeprefix(_PREFIX)] for each in learned) / len(learned)
        tensors[name] = torch.lerp(before.float(), mean, _WAY).half()
    trained = {
        "method": "distill",
        "supervised": True,
        "source": f"{arguments.passages.name} and {arguments.sentences.name}",
        "data": hashlib.sha256(arguments.passages.read_bytes()).hexdigest(),
        "examples": max(run.rows for run in runs),
        "batch_size": _PAIRS_A_STEP,
        "seed": 0,
        "started_from": entry.name,
        "runs_of_script": [dataclasses.asdict(run) for run in runs],
        "way": _WAY,
        "before": entry.provenance["trained"],
    }
    provenance = {**entry.provenance, "trained": trained}
    return dataclasses.replace(
        entry, name=arguments.name, tensors=tensors, provenance=provenance, scores=[]
    )


if __name__ == "__main__":
    main()
