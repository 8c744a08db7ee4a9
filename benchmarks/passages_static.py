r"""Fit the table of `mini-static` to titles and passages, and keep what it knows of sentences.

    python benchmarks/passages_corpus.py --data FOLDER --python SITE-PACKAGES -o passages.tsv
    python benchmarks/distillation_corpus.py --data FOLDER -o sentences.txt
    head -12000 passages.tsv | cut -f1 > titles.txt
    head -12000 passages.tsv | cut -f2 > bodies.txt
    promptcli embed titles.txt -m sentence-transformers/all-MiniLM-L6-v2 -o titles.npy
    promptcli embed bodies.txt -m sentence-transformers/all-MiniLM-L6-v2 -o bodies.npy
    python benchmarks/passages_static.py --passages passages.tsv --titles titles.npy \
      --bodies bodies.npy --sentences sentences.txt --from mini-static -o FOLDER

A step adds up to four losses: contrastive ones of titles and passages and of two random parts of a
passage (each against all others of the batch, both ways); the teacher's cosines of titles and
passages; and the vectors and cosines that the table had for sentences before. [CLS] and [SEP],
which every text has, count a hundredth. The table that is written is the mean of those of ``RUNS``.
It does not ship: `benchmarks/log.md` has what it gains and what it loses.
"""

import dataclasses
from pathlib import Path

import numpy as np
import scipy.sparse
import torch
from distillation_corpus import lines
from numpy.typing import NDArray
from passages_corpus import training_parser
from torch import Tensor
from torch.nn import functional
from transformers import AutoTokenizer, PreTrainedTokenizerBase

import promptcli
from promptcli.data.vectors.precision import unit
from promptcli.models.entries import write_entry
from promptcli.models.loading import open_registry
from promptcli.training.objectives.distillation import similarity_distance, vector_distance

TABLE = "backbone.embeddings.word_embeddings.weight"
_LONGEST = 512  # tokens of a text
_SENTENCES = 60_000
_PART = 0.3  # of the tokens of a passage that ask for the others
_TEMPERATURE = 0.05
_LEARNING_RATE = 0.01
_WARMUP = 0.05
_BETAS = (0.9, 0.98)
_SIMILARITY_WEIGHT = 5.0
_SENTENCES_WEIGHT = 3.0


@dataclasses.dataclass(frozen=True)
class Run:
    """Settings of a run: weights of the contrastive losses, length, size of a batch."""

    titles_weight: float
    parts_weight: float
    steps: int
    batch: int
    seed: int


RUNS = (
    Run(titles_weight=0.3, parts_weight=0.0, steps=300, batch=768, seed=0),
    Run(titles_weight=0.2, parts_weight=0.2, steps=300, batch=768, seed=0),
)


Bags = scipy.sparse.csr_matrix  # how often each text has each token, (texts, vocabulary)


def bags_of(texts: list[str], tokenizer: PreTrainedTokenizerBase) -> Bags:
    """Return the numbers of each text's tokens."""
    ids = tokenizer(texts, add_special_tokens=False, truncation=True, max_length=_LONGEST)[
        "input_ids"
    ]
    ends = np.cumsum([0, *map(len, ids)])
    flat = np.concatenate([np.array(each, np.int64) for each in ids])
    bags = Bags((np.ones(len(flat), np.float32), flat, ends), (len(texts), len(tokenizer)))
    bags.sum_duplicates()
    return bags


def parts_of(bags: Bags, draw: np.random.Generator) -> tuple[Bags, Bags]:
    """Return random parts of texts, and what is left of them."""
    part, rest = bags.copy(), bags.copy()
    part.data = draw.binomial(bags.data.astype(np.int64), _PART).astype(np.float32)
    rest.data = bags.data - part.data
    return part, rest


def vectors_of(table: Tensor, bags: Bags) -> Tensor:
    """Return the vectors (n, d) of texts, of length 1."""
    sums = functional.embedding_bag(
        torch.from_numpy(bags.indices.astype(np.int64)),
        table,
        torch.from_numpy(bags.indptr[:-1].astype(np.int64)),
        mode="sum",
        per_sample_weights=torch.from_numpy(bags.data),
    )
    return functional.normalize(sums, dim=1)


def contrast(one: Tensor, two: Tensor) -> Tensor:
    """Return the contrastive loss of pairs (n, d), in both directions."""
    cosines = one @ two.T / _TEMPERATURE
    own = torch.arange(len(one))
    return (functional.cross_entropy(cosines, own) + functional.cross_entropy(cosines.T, own)) / 2


@dataclasses.dataclass(frozen=True)
class Texts:
    """What a run learns from."""

    titles: Bags
    bodies: Bags
    taught_titles: NDArray[np.float32]  #: The teacher's vectors of the first of them.
    taught_bodies: NDArray[np.float32]
    sentences: Bags
    known: NDArray[np.float32]  #: The sentences' vectors before.


def fitted(start: NDArray[np.float32], texts: Texts, run: Run) -> NDArray[np.float32]:
    """Return the table of a run."""
    draw = np.random.default_rng(run.seed)
    table = torch.nn.Parameter(torch.from_numpy(start.copy()))
    optimizer = torch.optim.Adam([table], betas=_BETAS)
    for step in range(1, run.steps + 1):
        rate = min(1, step / (_WARMUP * run.steps)) * (1 - step / (run.steps + 1))
        optimizer.param_groups[0]["lr"] = _LEARNING_RATE * rate
        loss = loss_of(table, texts, run, draw)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 0:
            print(f"{run}: step {step}, loss {loss.item():.4f}", flush=True)
    return table.detach().numpy()


def loss_of(table: Tensor, texts: Texts, run: Run, draw: np.random.Generator) -> Tensor:
    """Return the loss of a batch that is drawn."""
    rows = draw.integers(0, texts.titles.shape[0], run.batch)
    titles, bodies = vectors_of(table, texts.titles[rows]), vectors_of(table, texts.bodies[rows])
    loss = run.titles_weight * contrast(titles, bodies)
    if run.parts_weight:
        rows = draw.integers(0, texts.bodies.shape[0], run.batch)
        part, rest = parts_of(texts.bodies[rows], draw)
        halves = contrast(vectors_of(table, part), vectors_of(table, rest))
        loss = loss + run.parts_weight * halves
    rows = draw.integers(0, len(texts.taught_titles), run.batch // 2)
    student = torch.cat(
        [vectors_of(table, texts.titles[rows]), vectors_of(table, texts.bodies[rows])]
    )
    teacher = np.concatenate([texts.taught_titles[rows], texts.taught_bodies[rows]])
    loss = loss + _SIMILARITY_WEIGHT * similarity_distance(student, torch.from_numpy(teacher))
    rows = draw.integers(0, texts.sentences.shape[0], run.batch)
    student = vectors_of(table, texts.sentences[rows])
    known = torch.from_numpy(texts.known[rows])
    forgotten = vector_distance(student, known) + _SIMILARITY_WEIGHT * similarity_distance(
        student, known
    )
    return loss + _SENTENCES_WEIGHT * forgotten


def main() -> None:
    """Write the model's folder."""
    parser = training_parser(__doc__, start="mini-static")
    parser.add_argument("-o", "--output", type=Path, required=True)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    entry = open_registry().load(arguments.start)
    shipped = Path(promptcli.__file__).parent / "shipped"
    tokenizer = AutoTokenizer.from_pretrained(shipped / entry.recipe.backbone)
    start = entry.tensors[TABLE].float().numpy()
    rows = [line.split("\t") for line in lines(arguments.passages)]
    sentences = bags_of(lines(arguments.sentences)[:_SENTENCES], tokenizer)
    texts = Texts(
        bags_of([title for title, _ in rows], tokenizer),
        bags_of([body for _, body in rows], tokenizer),
        unit(np.load(arguments.titles).astype(np.float32)),
        unit(np.load(arguments.bodies).astype(np.float32)),
        sentences,
        unit(sentences @ start),
    )
    table = np.mean([fitted(start, texts, run) for run in RUNS], axis=0)
    special = [tokenizer.cls_token_id, tokenizer.sep_token_id]
    table[special] = start[special] / 100
    tensors = {**entry.tensors, TABLE: torch.from_numpy(table.astype(np.float32))}
    arguments.output.mkdir()
    write_entry(arguments.output, dataclasses.replace(entry, tensors=tensors, scores=[]))


if __name__ == "__main__":
    main()
