"""What a row's columns are measured on: the kinds of rows, and how each one's encoder is made, fitted or trained.

The numbers of trained rows, a run for each seed, are kept in the cache.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

import torch

from promptcli.backbones.devices import choose_dtype
from promptcli.data.tasks import STSTask
from promptcli.data.training_examples import TrainingExamples
from promptcli.encoder.encoder import Encoder, tuned_weights
from promptcli.errors import NotFoundError, PromptcliError, UsageError
from promptcli.recipe import RECIPES, Recipe, split_spec
from promptcli.reproducing.measurement_context import EXAMPLES, MeasurementContext, hash_of
from promptcli.reproducing.published import PublishedRow, same_backbone, short_name
from promptcli.searching.heads import search_heads
from promptcli.storage.files import scratch_folder, sha256
from promptcli.training.fits import fit_recipe
from promptcli.training.methods import find_method
from promptcli.training.methods.method import Method
from promptcli.training.methods.training_settings import TrainingSettings

_OF_BACKBONE = ("weights_sha256", "tokenizer_sha256", "dtype")


@dataclass(eq=False)
class MeasuredSystem:
    """What a row's columns are measured on."""

    row: PublishedRow
    identity: dict[str, Any]  #: all that decides its figures but the data they are measured on; JSON-ready
    recipe: Recipe | None = None  #: every name resolved; None where nothing is encoded
    make: Callable[[], Encoder] | None = None  #: makes the encoder
    slow: bool = False  #: that takes long, so it is done when its turn comes
    vectors: Path | None = None  #: file of another program's vectors, where that is all there is
    transfer: Recipe | None = None  #: the recipe of transfer tasks, where it is another one
    runs: "Sequence[MeasuredSystem]" = ()  #: one for each seed, where figures are taken over several; else itself

    def __post_init__(self) -> None:
        self.runs = self.runs or (self,)

    @functools.cached_property
    def encoder(self) -> Encoder:
        """The encoder; fitted or trained now where something has to be."""
        assert self.make is not None, f"{self.row.run} encodes nothing"
        return self.make()

    @property
    def transfer_encoder(self) -> Encoder:
        """The encoder of transfer tasks."""
        encoder = self.encoder
        return encoder if self.transfer is None else Encoder(self.transfer, encoder.backbone, encoder.tensors())


Systems = Sequence[MeasuredSystem]


def grouped_by_input(systems: Iterable[MeasuredSystem]) -> list[list[MeasuredSystem]]:
    """Return systems in groups that one forward pass serves.

    What is slow to make comes last, each alone and when its turn comes, so that a killed run loses one at most.
    """
    groups: dict[object, list[MeasuredSystem]] = {}
    for system in systems:
        key = system if system.slow else system.make and system.encoder.input_key
        groups.setdefault(key, []).append(system)
    return sorted(groups.values(), key=lambda members: members[0].slow)


def weights_of(context: MeasurementContext) -> dict[str, str]:
    """Return which backbone it is, under no name."""
    return {name: context.backbone_facts[name] for name in _OF_BACKBONE}


def identity_of(recipe: Recipe, context: MeasurementContext) -> dict[str, Any]:
    """Return what decides the figures of a recipe on a context's backbone."""
    return {"recipe": {**recipe.to_dict(), "backbone": None}, **weights_of(context)}


def recipe_id(system: MeasuredSystem) -> str:
    """Return a short name of the recipe and what it was fitted on, the same for every backbone."""
    return hash_of({key: value for key, value in system.identity.items() if key not in _OF_BACKBONE})[:12]


if TYPE_CHECKING:
    from promptcli.training.run import TrainedWeights


@dataclass(frozen=True)
class TrainedForm:
    """What a row's argument means: a method, and what differs from its settings."""

    method: str
    changes: dict[str, Any] = field(default_factory=dict)
    then: str | None = None  #: recipe that is then fitted on the sentences of the examples, on the tuned backbone


#: DCPCSE's rows are told apart by the masked-LM term whatever a backbone's own settings say (its table 2).
FORMS = {
    "simcse": TrainedForm("simcse"),
    "promptbert": TrainedForm("promptbert"),
    "promptbert-one-template": TrainedForm("promptbert", {"two_templates": False, "denoising": False}),
    "promptbert-no-denoising": TrainedForm("promptbert", {"denoising": False}),
    "cotbert": TrainedForm("cotbert"),
    "isbert": TrainedForm("isbert"),
    "consert": TrainedForm("consert"),
    "sbert": TrainedForm("sbert"),
    "sbert-flow": TrainedForm("sbert", then="flow"),
    "sbert-whitening": TrainedForm("sbert", then="whitening"),
    "defsent": TrainedForm("defsent"),
    "defsent-cls": TrainedForm("defsent", {"pool": "cls"}),
    "defsent-max": TrainedForm("defsent", {"pool": "max"}),
    "optiprompt": TrainedForm("optiprompt"),
    "scpcse": TrainedForm("scpcse"),
    "dcpcse": TrainedForm("dcpcse", {"mlm_weight": 0.0}),
    "dcpcse-mlm": TrainedForm("dcpcse", {"mlm_weight": 0.1}),
    **{
        f"dcpcse-length-{length}": TrainedForm("dcpcse", {"mlm_weight": 0.0, "prefix_length": length})
        for length in (1, 5, 10, 16)
    },
}


def lacks_training(row: PublishedRow, context: MeasurementContext) -> str | None:
    """Return why a row cannot be trained here, or None: examples of the other kind, too few, no development pairs."""
    from promptcli.training.run import steps_of

    try:
        method, settings = _method(row, context)
        steps_of(settings, context.examples(_kind(method, row)).sizes)
        context.development()
        _ = context.corpus_facts
    except PromptcliError as error:
        return f"training: {error}"
    return None


def trained_system(row: PublishedRow, context: MeasurementContext) -> MeasuredSystem:
    """Return a row's system; it is trained when its encoder is first asked for."""
    runs = [_run(row, context, seed) for seed in context.seeds]
    if len(runs) == 1:
        return runs[0]
    together = {**runs[0].identity["trained"], "seed": list(context.seeds)}
    return MeasuredSystem(row, {**runs[0].identity, "trained": together}, runs[0].recipe, runs=runs)


def _run(row: PublishedRow, context: MeasurementContext, seed: int) -> MeasuredSystem:
    method, settings = _method(row, context)
    settings = settings.replace(seed=seed)
    examples, development = context.examples(_kind(method, row)), context.development()
    backbone = context.backbone
    recipe = method.recipe(backbone.name, backbone.provenance.family, settings)
    mixed = "bfloat16" in str(choose_dtype("auto", str(backbone.device)))
    transfer = method.transfer_recipe(recipe, settings)
    identity = {
        **identity_of(recipe, context),
        **({} if transfer is None else {"transfer": {**transfer.to_dict(), "backbone": None}}),
        "trained": {"method": method.name, "supervised": row.setting == "sup", **dataclasses.asdict(settings)},
        "precision": "bfloat16" if mixed else "float32",
        "examples": examples.sha256,
        "development": development.sha256(),
    }

    def make() -> Encoder:
        """Return the encoder of the weights kept from a training of the same identity, else train and keep them."""
        kept = context.cache.get_tensors(identity)
        if kept is None:
            encoder, trained = _train(method, settings, examples, development, context, mixed=mixed)
            context.cache.put_tensors(identity, trained.tensors)
            return encoder
        loaded, tuned = context.open_backbone(), tuned_weights(kept)
        if tuned:
            loaded.tune(tuned)
        return Encoder(recipe, loaded, kept)

    then = FORMS[row.argument].then
    if then is None:
        return MeasuredSystem(row, identity, recipe, make, slow=True, transfer=transfer)
    last = RECIPES[then].replace(backbone=backbone.name).explicit()
    sentences = [text for column in examples.columns[:2] for text in column]
    return MeasuredSystem(
        row,
        {**identity, "then": {**last.to_dict(), "backbone": None}},
        last,
        lambda: fit_recipe(last, sentences, backbone=make().backbone).encoder,
        slow=True,
    )


def examples_kind(row: PublishedRow, context: MeasurementContext) -> str:
    """Return what a trained row learns from, a kind in ``EXAMPLES``."""
    return _kind(_method(row, context)[0], row)


def _kind(method: Method, row: PublishedRow) -> str:
    from promptcli.training.objectives import find_objective

    read = find_objective(method).layouts
    kinds = [kind for kind, (layouts, *_) in EXAMPLES.items() if set(layouts) & set(read)]
    return kinds[-1] if row.setting == "sup" else kinds[0]


def _method(row: PublishedRow, context: MeasurementContext) -> tuple[Method, TrainingSettings]:
    form = FORMS[row.argument]
    method = find_method(form.method, supervised=row.setting == "sup")
    settings = method.settings(short_name(context.backbone_name), context.backbone.width)
    return method, settings.replace(**form.changes)


def _train(
    method: Method,
    settings: TrainingSettings,
    examples: TrainingExamples,
    development: STSTask,
    context: MeasurementContext,
    *,
    mixed: bool,
) -> "tuple[Encoder, TrainedWeights]":
    """Train on a backbone of its own, since training changes it."""
    from promptcli.training.objectives import find_objective
    from promptcli.training.processes import start_processes
    from promptcli.training.run import TrainingRun

    backbone = context.open_backbone()
    examples = find_objective(method).choose(examples, settings, backbone)
    with scratch_folder() as folder:
        processes = start_processes(str(backbone.device), mixed=mixed, trackers=[], folder=folder)
        return TrainingRun(method, settings, examples, "corpus", development).train(backbone, folder, processes)


Make = Callable[[PublishedRow, MeasurementContext], MeasuredSystem]
Lacks = Callable[[PublishedRow, MeasurementContext], str | None]


@dataclass(frozen=True)
class RowKind:
    """One kind of row."""

    make: Make | None = None  #: from a row and a context to its system; None while it is not built
    time: str = "minutes"  #: how long a row takes on two processor cores, data and weights being there
    absent: str = ""  #: why a row is not measured, as ``REASON: {}``; the braces are the row's argument
    backbone: str = "any"  #: ``any`` one will do; only the row's ``own``; or ``none`` is needed
    lacks: Lacks = lambda row, context: None  #: what is not there for a row, or None: a quick look, nothing is measured
    trains: bool = False  #: only where it is asked for; ``absent`` says so

    def on_backbone(self, *, train: bool) -> bool:
        """Return whether its rows are measured on a backbone, trained ones where ``train`` says so."""
        return self.make is not None and self.backbone != "none" and (train or not self.trains)


def _encodes(recipe_of: Callable[[str], Recipe]) -> Make:
    """Return what makes the system of a recipe that needs no numbers of its own, given the row's argument."""
    return lambda row, context: _plain(recipe_of(row.argument), row, context)


def _plain(recipe: Recipe, row: PublishedRow, context: MeasurementContext) -> MeasuredSystem:
    encoder = Encoder(_on(recipe, context), context.backbone, {})
    return MeasuredSystem(row, identity_of(encoder.recipe, context), encoder.recipe, lambda: encoder)


def _fitted(row: PublishedRow, context: MeasurementContext) -> MeasuredSystem:
    return _fitted_on(context.sentences, {"corpus": context.corpus_facts["sha256"]}, row, context)


def _fitted_nli(row: PublishedRow, context: MeasurementContext) -> MeasuredSystem:
    """Return what was published fitted on both sides of NLI pairs: on the triplets' where they are given."""
    if context.texts.triplets is None:
        return _fitted(row, context)
    first, second, *_ = context.examples("triplets").columns
    return _fitted_on([*first, *second], {"triplets": context.example_facts("triplets")["sha256"]}, row, context)


def _fitted_on(
    sentences: list[str], source: dict[str, str], row: PublishedRow, context: MeasurementContext
) -> MeasuredSystem:
    recipe = _on(RECIPES[row.argument], context)
    identity = {**identity_of(recipe, context), **source}
    return MeasuredSystem(
        row, identity, recipe, lambda: fit_recipe(recipe, sentences, backbone=context.backbone).encoder
    )


def _head(row: PublishedRow, context: MeasurementContext) -> MeasuredSystem:
    """Return the published head on the published backbone; on another one the head of the same rank there."""
    rank, head = split_spec(row.argument)
    if not same_backbone(row.backbone, context.backbone_name):
        ranked = ranked_heads(context)
        if int(rank) > len(ranked):
            raise UsageError(
                f"backbone {context.backbone_name!r} has {len(ranked)} heads, this row is the {rank}. best"
            )
        head = ranked[int(rank) - 1]["head"]
    return _plain(Recipe(pooling=f"first-last/ditto:{head}"), row, context)


def _external(row: PublishedRow, context: MeasurementContext) -> MeasuredSystem:
    path = vector_file(row, context)
    return MeasuredSystem(row, {"vectors": sha256(path)}, vectors=path, slow=True)


def vector_file(row: PublishedRow, context: MeasurementContext) -> Path:
    """Return the file of another program's vectors for the sentences of a row's table."""
    found = sorted(context.vectors.glob(f"{row.argument}.*")) if context.vectors is not None else []
    if not found:
        raise NotFoundError(f"another program's `vectors`: a folder with {row.argument}.npy")
    return found[0]


def _lacks_vectors(row: PublishedRow, context: MeasurementContext) -> str | None:
    try:
        vector_file(row, context)
    except NotFoundError as error:
        return str(error)
    return None


def _tokens(row: PublishedRow, context: MeasurementContext) -> MeasuredSystem:
    recipe = _on(RECIPES["prompt-denoised"], context)
    return MeasuredSystem(row, {**identity_of(recipe, context), "sentence": row.argument}, recipe)


class RankedHead(TypedDict):
    """A head and how alike its diagonal and TF-IDF are."""

    head: str
    tfidf: dict[str, float]


class _Heads(TypedDict):
    heads: list[RankedHead]


def ranked_heads(context: MeasurementContext) -> list[RankedHead]:
    """Return all heads on first-last states, the best on the development pairs first."""
    task, backbone = context.development(), context.backbone
    facts = context.tasks([task.label]).facts
    key = {"search": "heads", **weights_of(context), "data": facts, "corpus": context.corpus_facts["sha256"]}
    kept: Any = context.cache.get(key, _Heads)
    every = {f"{layer}-{head}" for layer in range(1, backbone.n_layers + 1) for head in range(1, backbone.n_heads + 1)}
    if kept is None or {head["head"] for head in kept["heads"]} != every:
        encoder = Encoder(Recipe(backbone=backbone.name), backbone, {})
        ranked = search_heads(encoder, task, context.sentences, states=["first-last"], top=len(every)).ranked
        heads = [{"head": row.choice.partition(":")[2], "tfidf": row.tfidf and row.tfidf.to_dict()} for row in ranked]
        kept = {"heads": heads}
        context.cache.put(key, kept)
    found_heads: list[RankedHead] = kept["heads"]
    return found_heads


def _lacks_tie(tied: bool) -> Lacks:
    """PromptBERT, table 12: rows of two models of one's own, one with output embeddings tied to the input's."""

    def lacks(row: PublishedRow, context: MeasurementContext) -> str | None:
        head = context.backbone.head
        if torch.equal(head.rows.cpu(), context.backbone.token_rows.cpu()) is tied:
            return None
        command = f"promptcli pretrain{'' if tied else ' --set tied=false'}"
        return f"needs a backbone with {'tied' if tied else 'untied'} output embeddings: `{command}`"

    return lacks


def _lacks_recipe(row: PublishedRow, context: MeasurementContext) -> str | None:
    return None if row.argument in RECIPES else f"not built here: {row.argument}"


def _lacks_drawing(row: PublishedRow, context: MeasurementContext) -> str | None:
    return "drawing: needs matplotlib: pip install 'promptcli[plot]'" if context.draw is None else None


def _on(recipe: Recipe, context: MeasurementContext) -> Recipe:
    return recipe.replace(backbone=context.backbone.name).explicit()


_named = _encodes(lambda name: RECIPES[name])
_pooled = _encodes(lambda pooling: Recipe(pooling=pooling))

#: By the kind that rows are of.
SYSTEMS: dict[str, RowKind] = {
    "recipe": RowKind(_named),
    "own": RowKind(_named, backbone="own"),
    "pooling": RowKind(_pooled),
    "tied": RowKind(_pooled, lacks=_lacks_tie(True)),
    "untied": RowKind(_pooled, lacks=_lacks_tie(False)),
    "template": RowKind(_encodes(lambda template: RECIPES["prompt"].replace(prompt=template))),
    "word-vectors": RowKind(_encodes(lambda name: Recipe(pooling="static/avg")), backbone="own"),
    "fitted": RowKind(_fitted, lacks=_lacks_recipe),
    "fitted-nli": RowKind(_fitted_nli, lacks=_lacks_recipe),
    "head": RowKind(_head),
    "tokens": RowKind(_tokens),
    "backbone": RowKind(lambda row, context: MeasuredSystem(row, weights_of(context))),
    "picture": RowKind(
        lambda row, context: MeasuredSystem(row, {"picture": row.argument, **weights_of(context)}), lacks=_lacks_drawing
    ),
    "settings": RowKind(
        lambda row, context: MeasuredSystem(row, {"settings": [row.run, row.backbone, row.setting]}),
        "seconds",
        backbone="none",
    ),
    "trained": RowKind(
        trained_system, "hours, GPU", "training: ask for it by `train`", lacks=lacks_training, trains=True
    ),
    "vectors": RowKind(_external, "that program's", lacks=_lacks_vectors, backbone="none"),
    "list": RowKind(time="-", absent="a list of words, no figures: held in {}", backbone="none"),
}
