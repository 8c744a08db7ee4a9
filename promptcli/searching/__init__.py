"""The public interface of searching: the best head, layer or template, and templates by token.

It imports nothing heavy, since the command line reads it: its functions import the work.
"""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from promptcli.data.given import check_arguments
from promptcli.data.senteval import senteval_folder, tasks_from
from promptcli.errors import UsageError, if_stopped
from promptcli.jobs import Job, argument, function_of, option
from promptcli.notes import keyword, note
from promptcli.recipe import MASK
from promptcli.searching.search_settings import SEARCHED, SearchSettings
from promptcli.settings import BARE, PAPER

if TYPE_CHECKING:
    from promptcli.data.tasks import STSTask
    from promptcli.encoder.encoder import TorchEncoder
    from promptcli.encoder.template import Template
    from promptcli.models.loading import Model
    from promptcli.named_templates import NamedTemplate
    from promptcli.searching.search import Search


_ON = (
    "Development set: a task, or a file of graded pairs. Default: STS-B:dev with `data_dir`, else"
    " demo:dev."
)
_NAME = "Save the best as a model under this name."
_FORCE = "Overwrite an existing model of that name."
_DATA_DIR = "SentEval folder of the tasks."


@dataclass(frozen=True)
class HeadSearchJob(Job["Search"]):
    """Rank all attention heads of a backbone by Ditto pooling, in one pass (Ditto, section 2).

    Every layer-head (both counted from 1) is tried on each kind of states. The figures, Spearman x
    100, are those of `promptcli eval --pooling STATES/ditto:LAYER-HEAD` on the development set.

    Raises:
        UsageError: Unknown states, pairs that cannot rank anything, no corpus, a name that is
            taken, or a backbone that does not open its attention.
        NotFoundError: A model, a task or a file is missing.

    Example:
        >>> search = search_heads("mini-bert", states=["first-last"])  # doctest: +SKIP
        >>> search.best.choice, search.best.value  # doctest: +SKIP
    """

    model: "Model | None" = option(
        None,
        "Backbone: `mini-bert` (default), a folder, a hub id, or a model's; the pooling is not"
        " used.",
        names="model m backbone",
        typed=str,
        kind="backbone",
    )
    on: "str | Path | STSTask | None" = option(None, _ON, metavar="TASK")
    corpus: "str | Path | Sequence[str]" = option(
        BARE.corpus,
        "Sentences to count idf on, for the correlation with TF-IDF: a file, a task or `demo`.",
    )
    _: KW_ONLY
    weights: Literal["ditto", "slot-attention"] = option(
        "ditto",
        "What a head weighs tokens by: its diagonal (ditto), or its row at the template's mask, of"
        " causal models at the last token (slot-attention; of a model without a template under a"
        " well-known one).",
    )
    states: Sequence[str] = option(SEARCHED, "States to try: static, last, first-last.")
    top: int = option(10, "Number of heads to describe.", min=1)
    name: str | None = option(None, _NAME)
    force: bool = option(False, _FORCE)
    data_dir: str | Path | None = option(None, _DATA_DIR, typed=Path, kind="data folder")

    def run(self) -> "Search":
        from promptcli.data.sources import fitting_sentences
        from promptcli.searching.search import rank_heads

        with tasks_from(self.data_dir):
            save = _saving(self.name, self.force)
            task = _development(self.on)
            corpus = self.corpus
            if isinstance(corpus, str | Path):
                corpus = fitting_sentences(str(corpus))
            encoder = _open_backbone(self.model or BARE.backbone)
            return save(rank_heads(encoder, task, corpus, self.states, self.top, self.weights))


search_heads = function_of(HeadSearchJob, "search_heads")


@dataclass(frozen=True)
class LayerSearchJob(Job["Search"]):
    """Rank the layers of a backbone as a recipe reads them, in one pass.

    Every layer (0: the embeddings), the last, and the means of first and last; for a recipe of
    `attention` or `values` also its first layers and its last ones, of `values` each alone. A
    contrastive prompt's own layer and C are chosen too, one pass for each. The figures, Spearman x
    100, are those of `promptcli eval --pooling STATES/WEIGHTS` on the development set.

    Raises:
        UsageError: Unknown weights, transforms in the recipe, a name that is taken, or pairs that
            cannot rank anything.
        NotFoundError: A model, a task or a file is missing.

    Example:
        >>> search_layers("mini-bert").best.choice  # doctest: +SKIP
    """

    model: "Model" = option(
        BARE.backbone,
        "An encoder, or what `load` takes; a backbone's name means its plain recipe.",
        kind="model",
    )
    on: "str | Path | STSTask | None" = option(None, _ON, metavar="TASK")
    _: KW_ONLY
    weights: Sequence[str] = option(
        (), "Weights to try on every layer, e.g. avg, last-token. Default: the recipe's."
    )
    name: str | None = option(None, _NAME)
    force: bool = option(False, _FORCE)
    data_dir: str | Path | None = option(None, _DATA_DIR, typed=Path, kind="data folder")

    def run(self) -> "Search":
        from promptcli.searching.search import rank_layers

        with tasks_from(self.data_dir):
            save = _saving(self.name, self.force)
            task = _development(self.on)
            return save(rank_layers(_open_backbone(self.model), task, self.weights))


search_layers = function_of(LayerSearchJob, "search_layers")


@dataclass(frozen=True)
class TemplateSearchJob(Job["Search"]):
    """Find the template that suits a backbone best (PromptBERT, section 4.2).

    A search that was killed resumes from its cached scores.

    Raises:
        UsageError: Settings that do not go together, a name that is taken, or a backbone, templates
            or pairs that cannot be searched.
        NotFoundError: A model, a file or a task is missing.

    Example:
        >>> search_templates("mini-bert", mode="free", limit=12).best.choice  # doctest: +SKIP
    """

    further = "settings"

    model: "Model | None" = option(
        None,
        "Backbone: `mini-bert` (default), a folder, a hub id, or a model's.",
        names="model m backbone",
        typed=str,
    )
    on: "str | Path | STSTask | None" = option(None, _ON, metavar="TASK")
    _: KW_ONLY
    settings: SearchSettings = option(
        SearchSettings(),
        "The candidates and how they are scored; single settings are keywords, too:"
        ' `mode="free"`, `limit=100`.',
    )
    name: str | None = option(None, _NAME)
    force: bool = option(False, _FORCE)
    data_dir: str | Path | None = option(None, _DATA_DIR, typed=Path, kind="data folder")

    def run(self) -> "Search":
        from promptcli.searching import template_search

        settings = self.settings
        with tasks_from(self.data_dir):
            template_search.choose_mode(settings)
            save = _saving(self.name, self.force)
            candidates = None
            if settings.candidates is not None:
                candidates = template_search.read_candidates(settings.candidates)
            task = _development(self.on)
            backbone = _open_backbone(self.model or BARE.backbone).backbone
            with if_stopped("scored templates are kept; run the same command to continue"):
                return save(template_search.rank_templates(backbone, task, settings, candidates))


search_templates = function_of(TemplateSearchJob, "search_templates")


def _open_backbone(model: "Model") -> "TorchEncoder":
    from promptcli.models.loading import backbone_model, open_model

    return open_model(backbone_model(model), dtype="stored")


def _development(on: "str | Path | STSTask | None") -> "STSTask":
    from promptcli.data.sources import development_task

    if on is None:
        on = BARE.development if senteval_folder() is None else PAPER.development
        note(
            f"using {keyword('on')} {on}; the papers used {PAPER.development} and {PAPER.backbone}"
        )
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


@dataclass(frozen=True)
class TemplateCheckJob(Job[CheckedTemplate]):
    """Return a template, filled with a sentence, as a backbone reads it.

    Raises:
        UsageError: The text is not a template.
        NotFoundError: The backbone is missing.
    """

    text: str = argument(
        "Name, or text with [X] and [MASK]. Default: list all.", "", metavar="[TEMPLATE]"
    )
    model: "Model | None" = option(
        None,
        "Whose backbone: `mini-bert` (default), a folder, a hub id, or one of your models.",
        names="model m backbone",
        typed=str,
        kind="backbone",
    )
    sentence: str = option("A cat sleeps on the mat.", "Sentence to fill in.")

    def run(self) -> CheckedTemplate:
        from promptcli.encoder import template as texts
        from promptcli.encoder.echo_template import make_template
        from promptcli.named_templates import named_templates, template_text

        filled = template_text(self.text)
        texts.check_template(filled, most=2)  # before anything is loaded
        backbone = _open_backbone(self.model or BARE.backbone).backbone
        tokens = backbone.tokenizer
        limit = backbone.max_tokens
        if not tokens.causal and MASK not in filled:
            raise UsageError(
                f"template {filled!r} has no {MASK}; put one at the position to be read"
            )
        if not self.sentence.strip():
            raise UsageError(f"the sentence is empty; give one with {keyword('sentence')}")
        template = make_template(filled, tokens)
        sentences = template.prepare([self.sentence], True)
        inputs = template.splice(tokens.encode_rows(sentences), limit)
        ids = inputs.rows[0]
        slots = template.mask_slots(len(ids))
        return CheckedTemplate(
            named=named_templates().get(self.text),
            backbone=backbone.name,
            family=backbone.provenance.family,
            template=filled,
            template_tokens=template.length,
            max_tokens=limit,
            room=(limit - template.length) // template.copies,
            sentence=sentences[0].strip(),
            tokens=[
                Token(place, token, tokens.text(token), part)
                for place, (token, part) in enumerate(zip(ids, _parts(template, ids), strict=True))
            ],
            mask_position=next(iter(slots), None),
            truncated=bool(inputs.truncated[0]),
        )


check_template = function_of(TemplateCheckJob, "check_template")


def _parts(template: "Template", ids: Sequence[int]) -> list[str]:
    """Return the part of the input that each of t tokens belongs to, see ``Token.part``."""
    parts = ["template"] * len(ids)
    for inside in template.pieces(len(ids)):
        parts[inside] = ["sentence"] * len(parts[inside])
    for slot in template.mask_slots(len(ids)):
        parts[slot] = "mask"
    return parts
