"""What a pre-training run predicts, as a table: masked tokens, words at the masks of templates, or the next token."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from promptcli.backbones.language_models import CausalLM, LanguageModel, MaskedLM
from promptcli.backbones.vocabulary import save_causal_tokenizer, save_tokenizer
from promptcli.pretraining.bag_of_words import predict_words
from promptcli.pretraining.batches import Batch, Step, mask, predict_next
from promptcli.pretraining.corpus import Corpus
from promptcli.pretraining.plan import Plan


@dataclass(frozen=True)
class Objective:
    """What a run predicts."""

    kind: str  #: as its card and plot call it
    architecture: str
    predicted: str  #: of held-out text, as the card says it
    places: str  #: where chunks begin, as the card says it of ``plan``
    model: type[LanguageModel]
    batch: Callable[[Step, Plan, Corpus], Batch]
    save_tokenizer: Callable[[Path, Path, int], None]  #: of a vocabulary, into a folder, with the longest input


_MASKED = Objective(
    kind="masked-LM",
    architecture="BERT",
    predicted="15% of tokens, all [MASK], seed 0",
    places="{plan.at_start:.0%} of the chunks begin at position 0, the others anywhere",
    model=MaskedLM,
    batch=mask,
    save_tokenizer=save_tokenizer,
)

OBJECTIVES: dict[str, Objective] = {
    "masked": _MASKED,
    "bag-of-words": dataclasses.replace(
        _MASKED,
        places=_MASKED.places
        + "; {plan.templated:.0%} of the steps teach templates: their masks predict the words of the"
        " sentences in them, so figures of prompts on this model are no evidence for plain BERTs",
        batch=predict_words,
    ),
    "causal": Objective(
        kind="causal-LM",
        architecture="Llama",
        predicted="every token of a line from those before it",
        places="rotary positions",
        model=CausalLM,
        batch=predict_next,
        save_tokenizer=save_causal_tokenizer,
    ),
}
