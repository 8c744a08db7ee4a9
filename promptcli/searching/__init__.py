"""The door of searching: the best head, layer or template of a model, and templates token by token.

It imports nothing heavy, since the command line reads it: its functions import the work.
"""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from promptcli.data.given import check_arguments
from promptcli.data.senteval import senteval_folder, tasks_from
from promptcli.errors import UsageError, if_interrupted
from promptcli.notes import note
from promptcli.recipe import MASK
from promptcli.searching.search_settings import SEARCHED, SearchSettings, Setting
from promptcli.settings import BARE, PAPER

if TYPE_CHECKING:
    from promptcli.data.tasks import STSTask
    from promptcli.encoder.encoder import Encoder
    from promptcli.models.loading import Model
    from promptcli.named_templates import NamedTemplate
    from promptcli.searching.search import Search


@check_arguments
def search_heads(
    model: "Model | None" = None,
    on: "str | Path | STSTask | None" = None,
    corpus: "str | Path | Sequence[str]" = BARE.corpus,
    *,
    weights: Literal["ditto", "slot-attention"] = "ditto",
    states: Sequence[str] = SEARCHED,
    top: int = 10,
    name: str | None = None,
    force: bool = False,
    data_dir: str | Path | None = None,
) -> "Search":
    """Rank all attention heads of a backbone by Ditto pooling, in one pass (Ditto, section 2).

    Every layer-head (both counted from 1) is tried on each kind of states. The figures, Spearman x
    100, are those of `promptcli eval --pooling STATES/ditto:LAYER-HEAD` on the development set.

    Args:
        model: Backbone: `mini-bert` (default), a folder, a hub id, or a model's; the pooling is not
            used.
        on: Development set: a task, or a file of graded pairs. Default: STS-B:dev with `data_dir`,
            else demo:dev.
        corpus: Sentences to count idf on, for the correlation with TF-IDF: a file, a task or
            `demo`.
        weights: What a head weighs tokens by: its diagonal (ditto), or its row at the template's
            mask, of causal models at the last token (slot-attention; of a model without a template
            under a well-known one).
        states: States to try: static, last, first-last.
        top: Number of heads to describe.
        name: Save the best as a model under this name.
        force: Overwrite an existing model of that name.
        data_dir: SentEval folder of the tasks.

    Raises:
        UsageError: Unknown states, pairs that cannot rank anything, no corpus, a name that is
            taken, or a backbone that does not open its attention.
        NotFoundError: A model, a task or a file is missing.

    Example:
        >>> search = search_heads("mini-bert", states=["first-last"])  # doctest: +SKIP
        >>> search.best.choice, search.best.value  # doctest: +SKIP
    """
    from promptcli.data.sources import fitting_sentences
    from promptcli.searching.search import rank_heads

    with tasks_from(data_dir):
        saved = _saving(name, force)
        task = _development(on)
        if isinstance(corpus, str | Path):
            corpus = fitting_sentences(str(corpus))
        encoder = _opened(model or BARE.backbone)
        return saved(rank_heads(encoder, task, corpus, states, top, weights))


@check_arguments
def search_layers(
    model: "Model" = BARE.backbone,
    on: "str | Path | STSTask | None" = None,
    *,
    weights: Sequence[str] = (),
    name: str | None = None,
    force: bool = False,
    data_dir: str | Path | None = None,
) -> "Search":
    """Rank the layers of a backbone as a recipe reads them, in one pass.

    Every layer (0: the embeddings), the last, and the means of first and last; for a recipe of
    `attention` also its first layers and its last ones. A contrastive prompt's own layer and C are
    chosen too, one pass for each. The figures, Spearman x 100, are those of `promptcli eval
    --pooling STATES/WEIGHTS` on the development set.

    Args:
        model: An encoder, or what ``load`` takes; a backbone's name means its plain recipe.
        on: Development set: a task, or a file of graded pairs. Default: STS-B:dev with `data_dir`,
            else demo:dev.
        weights: Weights to try on every layer, e.g. avg, last-token. Default: the recipe's.
        name: Save the best as a model under this name.
        force: Overwrite an existing model of that name.
        data_dir: SentEval folder of the tasks.

    Raises:
        UsageError: Unknown weights, transforms in the recipe, a name that is taken, or pairs that
            cannot rank anything.
        NotFoundError: A model, a task or a file is missing.

    Example:
        >>> search_layers("mini-bert").best.choice  # doctest: +SKIP
    """
    from promptcli.searching.search import rank_layers

    with tasks_from(data_dir):
        saved = _saving(name, force)
        task = _development(on)
        return saved(rank_layers(_opened(model), task, weights))


@check_arguments
def search_templates(
    model: "Model | None" = None,
    on: "str | Path | STSTask | None" = None,
    *,
    settings: SearchSettings | None = None,
    name: str | None = None,
    force: bool = False,
    data_dir: str | Path | None = None,
    **changes: Setting,
) -> "Search":
    """Find the template that suits a backbone best (PromptBERT, section 4.2).

    A search that was killed resumes from its cached scores.

    Args:
        model: Backbone: `mini-bert` (default), a folder, a hub id, or a model's.
        on: Development set: a task, or a file of graded pairs. Default: STS-B:dev with `data_dir`,
            else demo:dev.
        settings: The candidates and how they are scored.
        name: Save the best as a model under this name.
        force: Overwrite an existing model of that name.
        data_dir: SentEval folder of the tasks.
        changes: Of single settings, e.g. ``mode="free"``, ``limit=100``.

    Raises:
        UsageError: Settings that do not go together, a name that is taken, or a backbone, templates
            or pairs that cannot be searched.
        NotFoundError: A model, a file or a task is missing.

    Example:
        >>> search_templates("mini-bert", mode="free", limit=12).best.choice  # doctest: +SKIP
    """
    from promptcli.searching import template_search

    with tasks_from(data_dir):
        settings = (settings or SearchSettings()).replace(**changes)
        template_search.choose_mode(settings)
        saved = _saving(name, force)
        candidates = None
        if settings.candidates is not None:
            candidates = template_search.read_candidates(settings.candidates)
        task = _development(on)
        backbone = _opened(model or BARE.backbone).backbone
        with if_interrupted("scored templates are kept; run the same command to continue"):
            return saved(template_search.search_templates(backbone, task, settings, candidates))


def _opened(model: "Model") -> "Encoder":
    from promptcli.models.loading import backbone_model, open_model

    return open_model(backbone_model(model))


def _development(on: "str | Path | STSTask | None") -> "STSTask":
    from promptcli.data.sources import development_task

    if on is None:
        on = BARE.development if senteval_folder() is None else PAPER.development
        note(f"using `on` {on}; the papers used {PAPER.development} and {PAPER.backbone}")
    return development_task(on)


def _saving(name: str | None, force: bool) -> "Callable[[Search], Search]":
    """Return what saves the best of a search under a name, if there is one.

    A name that is taken is refused now.
    """
    from promptcli.models.loading import open_registry

    registry = open_registry()
    if name is not None:
        registry.check_free(name, force=force)

    def saved(search: "Search") -> "Search":
        if name is None:
            return search
        registry.save(search.entry(name), force=force)
        return dataclasses.replace(search, saved_as=name)

    return saved


@dataclass(frozen=True)
class Token:
    """One token of the model input."""

    position: int
    id: int
    text: str  #: the vocabulary item
    #: ``template``, ``sentence`` or ``mask``; characters of the template that touch the sentence
    #: are cut into tokens together with it and count as the sentence's.
    part: str


@dataclass(frozen=True)
class CheckedTemplate:
    """A template as one backbone reads it."""

    named: "NamedTemplate | None"  #: if it was given by its name
    backbone: str
    family: str
    template: str
    template_tokens: int  #: tokens of the template, special tokens included
    max_tokens: int
    room: int  #: tokens left for the sentence
    sentence: str  #: the sentence with the period that the papers' evaluation adds
    tokens: list[Token]
    mask_position: int | None  #: of the (first) mask; None in causal models, read at the last token
    truncated: bool  #: whether the sentence was cut


@check_arguments
def templates() -> "dict[str, NamedTemplate]":
    """Return the named templates.

    Example:
        >>> import promptcli as pc
        >>> pc.templates()["manual"].text
        'This sentence : "[X]" means [MASK] .'
    """
    from promptcli.named_templates import named_templates

    return dict(named_templates())


@check_arguments
def check_template(
    text: str, model: "Model | None" = None, sentence: str = "A cat sleeps on the mat."
) -> CheckedTemplate:
    """Return a template, filled with a sentence, as a backbone reads it.

    Args:
        text: A template's name, or text with [X] and [MASK].
        model: Whose backbone: `mini-bert` (default), a folder, a hub id, or one of your models.
        sentence: Sentence to fill in.

    Raises:
        UsageError: The text is not a template.
        NotFoundError: The backbone is missing.
    """
    from promptcli.encoder import template as texts
    from promptcli.models.loading import backbone_model, open_model
    from promptcli.named_templates import named_templates, template_text

    filled = template_text(text)
    texts.check_template(filled)  # before anything is loaded
    backbone = open_model(backbone_model(model or BARE.backbone)).backbone
    tokens = backbone.tokenizer
    limit = backbone.max_tokens
    if not tokens.causal and MASK not in filled:
        raise UsageError(f"template {filled!r} has no {MASK}; put one at the position to be read")
    if not sentence.strip():
        raise UsageError("the sentence is empty; give one with `sentence`")
    template = texts.Template(filled, tokens)

    inputs = template.splice(tokens.packed(template.prepared([sentence], True)), limit)
    ids = inputs.rows[0]
    origins = ["template"] * len(ids)
    inside = slice(len(template.prefix), len(ids) - len(template.suffix))
    origins[inside] = ["sentence"] * len(origins[inside])
    for slot in template.mask_slots(len(ids)):
        origins[slot] = "mask"
    return CheckedTemplate(
        named=named_templates().get(text),
        backbone=backbone.name,
        family=backbone.provenance.family,
        template=filled,
        template_tokens=template.length,
        max_tokens=limit,
        room=limit - template.length,
        sentence=template.prepared([sentence], True)[0].strip(),
        tokens=[
            Token(place, token, tokens.text(token), origins[place])
            for place, token in enumerate(ids)
        ],
        mask_position=next(iter(template.mask_slots(len(ids))), None),
        truncated=inputs.truncated[0],
    )
