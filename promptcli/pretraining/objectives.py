"""What a pre-training run predicts, as a table: masked tokens (a BERT) or the next token (a Llama)."""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from promptcli.backbones.causal_lm import CausalLM
from promptcli.backbones.language_model import LanguageModel
from promptcli.backbones.loading import load_backbone
from promptcli.backbones.masked_lm import MaskedLM
from promptcli.backbones.vocabulary import SPECIALS, UNK, Vocabulary, save_causal_tokenizer, save_tokenizer
from promptcli.encoder.batching import plan_batches
from promptcli.evaluation.perplexity import masked_accuracy, undo_wikitext
from promptcli.pretraining.batches import Batch, Step, mask, next_tokens, predict_next
from promptcli.pretraining.corpus import Corpus
from promptcli.pretraining.plan import Plan


@dataclass(frozen=True)
class Objective:
    """What a run predicts."""

    kind: str  #: as its card and plot call it
    architecture: str
    predicted: str  #: of held-out text, as the card says it
    counted: str  #: the figure that says how many of them
    places: str  #: where chunks begin, as the card says it of ``plan``
    model: type[LanguageModel]
    batch: Callable[[Step, Plan, Corpus], Batch]
    save_tokenizer: Callable[[Path, Path, int], None]  #: of a vocabulary, into a folder, with the longest input
    #: Model, its folder, the longest input, held-out lines, progress -> accuracy (percent), perplexity, counts.
    score: Callable[[LanguageModel, Path, int, Sequence[str], Callable[[int], None]], dict[str, Any]]


def _masked_figures(
    model: LanguageModel, folder: Path, positions: int, lines: Sequence[str], progress: Callable[[int], None]
) -> dict[str, Any]:
    backbone = load_backbone(str(folder.resolve()), device=str(model.token_rows.device))  # a bare `mini` is the shipped
    return asdict(masked_accuracy(backbone, lines, progress=progress))


def _next_token_figures(
    model: LanguageModel, folder: Path, positions: int, lines: Sequence[str], progress: Callable[[int], None]
) -> dict[str, Any]:
    """Return the figures over all tokens of the lines and the [SEP] after each, cut at the longest input."""
    vocabulary = Vocabulary.load(folder / "work" / "vocab.txt")
    plain = [undo_wikitext(line, SPECIALS[UNK]) for line in lines]
    chunks = [ids[: positions - 2] for ids in vocabulary.encode(plain) if ids]
    loss, right, predicted = 0.0, 0, 0
    model.set_dropout(0.0)
    with torch.no_grad():
        for numbers in plan_batches(np.array([len(chunk) for chunk in chunks])):
            chosen = np.unique(numbers).tolist()
            batch = next_tokens([chunks[number] for number in chosen])
            mean, correct = model.loss(*batch.tensors(model.token_rows.device))
            loss += float(mean) * len(batch.gold)
            right, predicted = right + int(correct), predicted + len(batch.gold)
            progress(len(chosen))
    return {
        "accuracy": 100 * right / predicted,
        "perplexity": math.exp(loss / predicted),
        "predicted": predicted,
        "sentences": len(chunks),
    }


OBJECTIVES: dict[str, Objective] = {
    "masked": Objective(
        kind="masked-LM",
        architecture="BERT",
        predicted="15% of tokens, all [MASK], seed 0",
        counted="masked",
        places="{plan.at_start:.0%} of the chunks begin at position 0, the others anywhere",
        model=MaskedLM,
        batch=mask,
        save_tokenizer=save_tokenizer,
        score=_masked_figures,
    ),
    "causal": Objective(
        kind="causal-LM",
        architecture="Llama",
        predicted="every token and the end of each line",
        counted="predicted",
        places="rotary positions",
        model=CausalLM,
        batch=predict_next,
        save_tokenizer=save_causal_tokenizer,
        score=_next_token_figures,
    ),
}
