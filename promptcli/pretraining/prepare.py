"""What a pre-training run makes before its first step, each thing once: vocabulary, token ids, start vectors."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch

from promptcli.backbones.vocabulary import Vocabulary, train_vocabulary
from promptcli.errors import UsageError
from promptcli.pretraining.bag_of_words import DEFAULT_TEMPLATES, read_templates
from promptcli.pretraining.corpus import Corpus, CorpusFile, open_corpus, read_prepared, start_again, tokenise
from promptcli.pretraining.plan import BAGS, Plan
from promptcli.pretraining.start import ppmi_svd
from promptcli.storage.files import atomic_path


def make_vocabulary(
    folder: Path, files: Sequence[CorpusFile], size: int, progress: Callable[[int], None]
) -> Vocabulary:
    """Return the run's vocabulary, trained on all lines where it is not there yet.

    Raises:
        UsageError: Too little text for ``size``, or the vocabulary that is there is damaged.
    """
    if not (folder / "vocab.txt").is_file():

        def lines() -> Iterator[str]:
            for file in files:
                for line in file.lines():
                    progress(1)
                    yield line

        vocabulary = train_vocabulary(lines, size)
        with atomic_path(folder / "vocab.txt") as temporary:
            vocabulary.save(temporary)
    loaded = Vocabulary.load(folder / "vocab.txt")
    if loaded.size != size:
        raise UsageError(f"{folder / 'vocab.txt'} holds {loaded.size:,} pieces, not {size:,}; {start_again(folder)}")
    return loaded


def templates_file(objective: str, given: Path | None) -> Path | None:
    """Return the file of an objective's templates, None for one without templates.

    Raises:
        UsageError: A file is given for such a one.
    """
    if objective in BAGS:
        return given or DEFAULT_TEMPLATES
    if given:
        raise UsageError(f"--templates does not go with --objective {objective}; add --objective {BAGS[0]}")
    return None


def make_corpus(
    folder: Path,
    files: Sequence[CorpusFile],
    vocabulary: Vocabulary,
    plan: Plan,
    templates: Path | None,
    progress: Callable[[int], None],
) -> Corpus:
    """Return the tokenised corpus, written where it is not there yet, with the templates that the plan wants.

    Raises:
        UsageError: It has fewer tokens than one batch, or a line of the file of templates is none.
    """
    template_lines = templates_file(plan.objective, templates)
    stood_in = read_templates(template_lines, vocabulary) if template_lines else ()
    if not (folder / "corpus.json").is_file():
        tokenise(files, vocabulary, folder, progress)
    corpus = open_corpus(folder, vocabulary.size)
    if len(corpus.tokens) < plan.batch_tokens:
        raise UsageError(
            f"the corpus has {len(corpus.tokens):,} tokens, fewer than one batch (--batch-tokens {plan.batch_tokens});"
            " give more text or a smaller batch"
        )
    return dataclasses.replace(corpus, pieces=vocabulary.pieces, templates=stood_in)


def make_start(folder: Path, corpus: Corpus, plan: Plan) -> torch.Tensor | None:
    """Return the start vectors, (v, d), computed where they are not there yet; None where the plan wants none."""
    if not plan.svd_start:
        return None
    path = folder / "start.npy"
    if not path.is_file():
        vectors = ppmi_svd(corpus, plan.vocab_size, plan.width, plan.seed)
        with atomic_path(path) as temporary, temporary.open("wb") as out:
            np.save(out, vectors, allow_pickle=False)
    vectors = read_prepared(path)
    if vectors.shape != (plan.vocab_size, plan.width) or vectors.dtype != np.float32 or not np.isfinite(vectors).all():
        raise UsageError(f"{path} holds no {plan.vocab_size} x {plan.width} finite numbers; {start_again(folder)}")
    return torch.from_numpy(vectors)
