"""The best attention head, layer or template for a backbone, and templates token by token.

The functions import what is heavy when they are called.
"""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from promptcli.data.senteval import senteval_folder, tasks_from
from promptcli.errors import UsageError, if_stopped
from promptcli.notes import note
from promptcli.recipe import MASK
from promptcli.settings import BARE, PAPER

if TYPE_CHECKING:
    from promptcli.data.tasks import STSTask
    from promptcli.encoder.encoder import TorchEncoder
    from promptcli.models.loading import Model
    from promptcli.named_templates import NamedTemplate
    from promptcli.select.search import Search


def search_heads(
    model: "Model" = BARE.backbone,
    on: "str | Path | STSTask | None" = None,
    corpus: str | Path | Sequence[str] = BARE.corpus,
    *,
    weights: str = "ditto",
    states: Sequence[str] = ("static", "last", "first-last"),
    top: int = 10,
    name: str | None = None,
    force: bool = False,
    data_dir: str | Path | None = None,
) -> "Search":
    """Rank all attention heads of a backbone by Ditto pooling, in one pass (Ditto, section 2).

    Every layer-head (both counted from 1) is tried on each kind of states. The figures, Spearman x
    100, are those of the pooling ``STATES/ditto:LAYER-HEAD`` on the development set.

    Args:
        model: Backbone: ``mini-bert``, a folder, a hub id, or a model's; the pooling is not used.
        on: Development set: a task, or a file of graded pairs. Default: STS-B:dev with
            ``data_dir``, else demo:dev.
        corpus: Sentences to count idf on, for the correlation with TF-IDF: texts in a list, a file,
            a task or ``demo``.
        weights: What a head weighs tokens by: its diagonal (``ditto``), or its row at the
            template's mask, of causal models at the last token (``slot-attention``; of a model
            without a template under a well-known one).
        states: States to try: ``static``, ``last``, ``first-last``.
        top: Number of heads to describe.
        name: Save the best as a model under this name.
        force: Replace a model of that name.
        data_dir: SentEval folder of the tasks.

    Returns:
        The heads, best first, the (L, h) map of each kind of states, and the selection bias.

    Raises:
        UsageError: Unknown states, pairs that cannot rank anything, no corpus, a name that is
            taken, or a backbone that does not open its attention.
        NotFoundError: A model, a task or a file is missing.

    Example:
        >>> search = search_heads("mini-bert", states=["first-last"])  # doctest: +SKIP
        >>> search.best.choice, search.best.value  # doctest: +SKIP
    """
    from promptcli.data.sources import fitting_sentences
    from promptcli.select.search import rank_heads

    if top < 1:
        raise UsageError(f"must be at least 1, got {top}", parameter="top")
    with tasks_from(data_dir):
        save = _saving(name, force)
        task = _development(on)
        if isinstance(corpus, str | Path):
            corpus = fitting_sentences(str(corpus))
        return save(rank_heads(_open_backbone(model), task, corpus, states, top, weights))


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
    ``attention`` or ``values`` also its first layers and its last ones, of ``values`` each alone. A
    contrastive prompt's own layer and C are chosen too, one pass for each.

    Args:
        model: An encoder, or what ``load`` takes; a backbone's name means its plain recipe.
        on: Development set, see ``search_heads``.
        weights: Weights to try on every layer: ``avg``, ``last-token``. Default: the recipe's.
        name: Save the best as a model under this name.
        force: Replace a model of that name.
        data_dir: SentEval folder of the tasks.

    Returns:
        The poolings, best first, in Spearman x 100, and the selection bias.

    Raises:
        UsageError: Unknown weights, transforms in the recipe, a name that is taken, or pairs that
            cannot rank anything.
        NotFoundError: A model, a task or a file is missing.

    Example:
        >>> search_layers("mini-bert").best.choice  # doctest: +SKIP
    """
    from promptcli.select.search import rank_layers

    with tasks_from(data_dir):
        save = _saving(name, force)
        task = _development(on)
        return save(rank_layers(_open_backbone(model), task, weights))


def search_templates(
    model: "Model" = BARE.backbone,
    on: "str | Path | STSTask | None" = None,
    *,
    mode: str | None = None,
    candidates: str | Path | None = None,
    t5: str | None = None,
    pairs: str | Path | None = None,
    beam: int = 100,
    limit: int | None = None,
    top: int = 10,
    seed: int = 42,
    name: str | None = None,
    force: bool = False,
    data_dir: str | Path | None = None,
) -> "Search":
    """Find the template that suits a backbone best (PromptBERT, section 4.2).

    A search that was stopped resumes from its cached scores.

    Args:
        model: Backbone: ``mini-bert``, a folder, a hub id, or a model's.
        on: Development set, see ``search_heads``.
        mode: ``greedy``: PromptBERT 4.2, relation tokens, then prefix tokens around the best of
            them; ``free``: a race among the templates of a grammar or a file, or those that a T5
            writes; ``demonstrations``: a race among examples in front of PromptEOL's template, on a
            causal model. Default: greedy, with ``candidates`` or ``t5`` free.
        candidates: File of templates, one a line. Default: the packaged grammar's.
        t5: Folder or hub id of a T5 that writes the candidates as in LM-BFF.
        pairs: Of ``demonstrations`` and ``t5``: file of word<TAB>definition lines, or
            word<TAB>sentence that it sums up. Default: 235 shipped ones.
        beam: Templates that a T5 keeps (the paper: 500).
        limit: Number of candidates to draw. Default: 600 of the packaged grammar, else all.
        top: Number of templates of a race to list.
        seed: Of the draw and of the order of the pairs.
        name: Save the best as a model under this name.
        force: Replace a model of that name.
        data_dir: SentEval folder of the tasks.

    Returns:
        The templates, best first, in Spearman x 100.

    Raises:
        UsageError: Settings that do not go together, a name that is taken, or a backbone, templates
            or pairs that cannot be searched.
        NotFoundError: A model, a file or a task is missing.

    Example:
        >>> search_templates("mini-bert", mode="free", limit=12).best.choice  # doctest: +SKIP
    """
    from promptcli.select import template_search

    for parameter, value, least in (
        ("beam", beam, 2),
        ("limit", limit, 1),
        ("top", top, 1),
        ("seed", seed, 0),
    ):
        if value is not None and value < least:
            raise UsageError(f"must be at least {least}, got {value}", parameter=parameter)
    settings = template_search.SearchSettings(mode, candidates, t5, pairs, beam, limit, top, seed)
    with tasks_from(data_dir):
        template_search.choose_mode(settings)
        save = _saving(name, force)
        texts = None if candidates is None else template_search.read_candidates(Path(candidates))
        task = _development(on)
        backbone = _open_backbone(model).backbone
        with if_stopped("scored templates are kept; run the same command to continue"):
            return save(template_search.rank_templates(backbone, task, settings, texts))


def _open_backbone(model: "Model") -> "TorchEncoder":
    from promptcli.models.loading import backbone_model, open_model

    return open_model(backbone_model(model), dtype="stored")  # scores are not of fewer bits


def _development(on: "str | Path | STSTask | None") -> "STSTask":
    from promptcli.data.sources import development_task

    if on is None:
        on = BARE.development if senteval_folder() is None else PAPER.development
        note(f"choosing on {on}; the papers used {PAPER.development} and {PAPER.backbone}")
    return development_task(on)


def _saving(name: str | None, force: bool) -> "Callable[[Search], Search]":
    """Return what saves the best of a search under a name, if there is one.

    A name that is taken is refused now.
    """
    from promptcli.models.loading import open_registry

    registry = open_registry()
    if name is not None:
        registry.check_free(name, force=force)

    def save(search: "Search") -> "Search":
        if name is None:
            return search
        registry.save(search.entry(name), force=force)
        return dataclasses.replace(search, saved_as=name)

    return save


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


def templates() -> "dict[str, NamedTemplate]":
    """Return the named templates.

    Example:
        >>> import promptcli as pc
        >>> pc.templates()["manual"].text
        'This sentence : "[X]" means [MASK] .'
    """
    from promptcli.named_templates import named_templates

    return dict(named_templates())


def check_template(
    text: str, model: "Model" = BARE.backbone, sentence: str = "A cat sleeps on the mat."
) -> CheckedTemplate:
    """Return a template, filled with a sentence, as a backbone reads it.

    Args:
        text: Name of a template, or text with [X] and [MASK].
        model: Whose backbone: ``mini-bert``, a folder, a hub id, or one of your models.
        sentence: Sentence to fill in.

    Raises:
        UsageError: The text is not a template.
        NotFoundError: The backbone is missing.
    """
    from promptcli.encoder.template import Template, check_template
    from promptcli.encoder.text_rules import PLAIN_TEXT
    from promptcli.named_templates import named_templates, template_text

    filled = template_text(text)
    check_template(filled, most=2)  # before anything is loaded
    backbone = _open_backbone(model).backbone
    tokens = backbone.tokenizer
    limit = backbone.max_tokens
    if not tokens.causal and MASK not in filled:
        raise UsageError(f"template {filled!r} has no {MASK}; put one at the position to be read")
    if not sentence.strip():
        raise UsageError("is empty; give one", parameter="sentence")
    template = Template(filled, tokens)
    pieces = template.with_touching([PLAIN_TEXT.apply(sentence, period=True)])
    inputs = template.inputs(pieces, tokens.encode_ragged, limit)
    ids = inputs.ids[0]
    masks = template.mask_positions(inputs.ids.lengths)[0].tolist()
    parts = ["template"] * len(ids)
    for inside in template.pieces(len(ids)):
        parts[inside] = ["sentence"] * len(parts[inside])
    for position in masks:
        parts[position] = "mask"
    return CheckedTemplate(
        named=named_templates().get(text),
        backbone=backbone.name,
        family=backbone.provenance.family,
        template=filled,
        template_tokens=template.length,
        max_tokens=limit,
        room=(limit - template.length) // template.copies,
        sentence=pieces[0].strip(),
        tokens=[
            Token(place, token, tokens.text(token), part)
            for place, (token, part) in enumerate(zip(ids, parts, strict=True))
        ],
        mask_position=next(iter(masks), None),
        truncated=bool(inputs.truncated[0]),
    )
