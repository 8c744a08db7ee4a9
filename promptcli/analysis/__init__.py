"""Looking inside: anisotropy, uniformity, token bias, impact, attention, tokens at the mask. The table of analyses."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from promptcli.analysis import anisotropy, impact, mask_tokens, sentence, token_bias, uniformity


@dataclass(frozen=True)
class Analysis:
    """One way of looking at a model."""

    help: str  #: what is found, and where the papers have it
    takes: str  #: ``sentence``, ``sentences``, ``pairs`` (tasks of graded pairs), or ``nothing``
    #: An encoder, what it takes, and the options of the function that is called -> what was found.
    run: Callable[..., Any]


#: By the name that ``promptcli.analyze`` takes.
ANALYSES: dict[str, Analysis] = {
    "anisotropy": Analysis(
        "mean cosine between sentences (PromptBERT, table 1; Ditto, table 5)",
        "sentences",
        lambda encoder, texts, **options: anisotropy.sentence_anisotropy(
            [encoder], anisotropy.Preparation(**options).apply(texts)
        )[0],
    ),
    "vocabulary": Analysis(
        "mean cosine between rows of the word-embedding matrix (PromptBERT, table 2)",
        "nothing",
        lambda encoder, _: anisotropy.token_anisotropy(encoder.backbone),
    ),
    "uniformity": Analysis(
        "alignment and uniformity of unit vectors (Ditto, figure 4)",
        "pairs",
        lambda encoder, tasks: uniformity.measure([encoder], tasks)[0],
    ),
    "token-bias": Analysis(
        "where tokens lie by frequency, subword and case (PromptBERT, figure 1)",
        "sentences",
        lambda encoder, texts, **options: token_bias.token_bias(encoder.backbone, texts, **options),
    ),
    "mask-tokens": Analysis(
        "most probable tokens at the mask, with and without denoising (PromptBERT, table 7)",
        "sentences",
        lambda encoder, texts, **options: mask_tokens.predict_mask_tokens(
            encoder.backbone, encoder.recipe, texts, **options
        ),
    ),
    "impact": Analysis(
        "how much each token matters to each other one's state (Ditto, 2.3)",
        "sentence",
        lambda encoder, text: impact.impact(encoder.backbone, text),
    ),
    "impact-tfidf": Analysis(
        "how alike the impacts of tokens and TF-IDF are (Ditto, table 3)",
        "sentences",
        lambda encoder, texts, corpus=None: impact.compare_with_tfidf(encoder.backbone, texts, corpus or texts),
    ),
    "attention": Analysis(
        "one head's attention on a sentence, and its diagonal (Ditto, figure 2)",
        "sentence",
        lambda encoder, text, **options: sentence.attention(encoder.backbone, text, **options),
    ),
}
