"""The kinds of rows, and the encoder of each."""

import dataclasses
import functools
import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import torch

from promptcli.backbones import devices
from promptcli.data.training_data import TrainingExamples
from promptcli.encoder.encoder import TorchEncoder, tuned_weights
from promptcli.errors import UsageError
from promptcli.plugins.papers.contexts import EXAMPLES, MeasurementContext
from promptcli.plugins.papers.published import Facts, PublishedRow, short_name
from promptcli.recipe import RECIPES, Recipe
from promptcli.select.head_search import search_heads
from promptcli.training.config import (
    differences_from_paper,
    preset_for,
    shape_of_loaded,
)
from promptcli.training.fitting import fit_recipe
from promptcli.training.methods import find_method
from promptcli.training.methods.method import ConfiguredMethod, Method, TrainingSettings
from promptcli.training.objectives import find_objective
from promptcli.training.run import train_encoder


def hash_of(value: Any) -> str:
    """Return the hex SHA-256 of JSON-ready values."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


_OF_BACKBONE = ("weights_sha256", "tokenizer_sha256", "dtype", "extension")


@dataclass(eq=False)
class MeasuredSystem:
    """The encoder for measuring a row."""

    row: PublishedRow
    identity: Facts  #: everything except the data that determines its scores; JSON-ready
    recipe: Recipe | None = None  #: every name resolved; None if nothing is encoded
    make: Callable[[], TorchEncoder] | None = None  #: builds the encoder, by training if necessary
    fitted_on: str | None = None  #: its fitting or training text, in ``EXAMPLES``
    #: settings and data of a training, and the settings' differences from the paper; JSON-ready
    training: Facts | None = None
    transfer: Recipe | None = None  #: the recipe of transfer tasks, if it differs
    runs: "Sequence[MeasuredSystem]" = ()  #: one system for each of several seeds; else empty

    def __post_init__(self) -> None:
        self.runs = self.runs or (self,)

    @functools.cached_property
    def id(self) -> str:
        """A hash; equal systems have the same scores."""
        return hash_of(self.identity)

    @functools.cached_property
    def encoder(self) -> TorchEncoder:
        """The encoder; fitted or trained now if necessary."""
        assert self.make is not None, f"{self.row.run} encodes nothing"
        return self.make()


Systems = Sequence[MeasuredSystem]


def grouped_by_input(systems: Iterable[MeasuredSystem]) -> list[list[MeasuredSystem]]:
    """Return systems in groups that share a forward pass.

    Trained ones come last, each alone, so a kill loses at most one.
    """
    groups: dict[object, list[MeasuredSystem]] = {}
    trained = []
    for system in systems:
        if system.training is not None:
            trained.append([system])
        else:
            key = system.make and tuple(part.input_key for part in system.encoder.prompt_encoders)
            groups.setdefault(key, []).append(system)
    return [*groups.values(), *trained]


def weights_of(context: MeasurementContext) -> Facts:
    """Return the identity of the backbone without its name."""
    facts = context.backbone_facts
    return {name: facts[name] for name in _OF_BACKBONE if name in facts}


def identity_of(recipe: Recipe, context: MeasurementContext) -> Facts:
    """Return everything that determines a recipe's scores on a context's backbone."""
    return {"recipe": {**recipe.to_dict(), "backbone": None}, **weights_of(context)}


def recipe_id(system: MeasuredSystem) -> str:
    """Return a short hash of the recipe and its fitting data, the same for every backbone."""
    identity = dict(system.identity)
    for key in _OF_BACKBONE:
        identity.pop(key, None)
    return hash_of(identity)[:12]


@dataclass(frozen=True)
class TrainedForm:
    """The training setup of a row."""

    method: str
    changes: Mapping[str, Any] = field(default_factory=dict)  #: of the method's settings
    #: name of the recipe that is fitted on the sentences of the examples after the training
    fitted_afterwards: str | None = None


#: By the argument of rows of the kind ``trained``, if it is not the method. DCPCSE rows differ in
#: the masked-LM term, which overrides a backbone's settings (its table 2).
FORMS: dict[str, TrainedForm] = {
    "promptbert-one-template": TrainedForm(
        "promptbert", {"two_templates": False, "denoising": False}
    ),
    "promptbert-no-denoising": TrainedForm("promptbert", {"denoising": False}),
    "sbert-flow": TrainedForm("sbert", fitted_afterwards="flow"),
    "sbert-whitening": TrainedForm("sbert", fitted_afterwards="whitening"),
    "defsent-cls": TrainedForm("defsent", {"pool": "cls"}),
    "defsent-max": TrainedForm("defsent", {"pool": "max"}),
    "dcpcse": TrainedForm("dcpcse", {"mlm_weight": 0.0}),
    "dcpcse-mlm": TrainedForm("dcpcse", {"mlm_weight": 0.1}),
    **{
        f"dcpcse-length-{length}": TrainedForm(
            "dcpcse", {"mlm_weight": 0.0, "prefix_length": length}
        )
        for length in (1, 5, 10, 16)
    },
}


def form_of(row: PublishedRow) -> TrainedForm:
    """Return the training setup of a row."""
    return FORMS.get(row.argument) or TrainedForm(row.argument)


def _trained(row: PublishedRow, context: MeasurementContext) -> MeasuredSystem:
    """Return a row's system, which is trained when its encoder is first used."""
    runs = [_trained_run(row, context, seed) for seed in context.seeds]
    first = runs[0]
    if len(runs) == 1:
        return first
    assert first.training is not None
    seeds = {"seed": list(context.seeds)}
    identity = {**first.identity, "trained": first.identity["trained"] | seeds}
    return dataclasses.replace(
        first, identity=identity, make=None, training=first.training | seeds, runs=runs
    )


def _trained_run(row: PublishedRow, context: MeasurementContext, seed: int) -> MeasuredSystem:
    """Return the system of one training run with a seed."""
    method = find_method(form_of(row).method, supervised=row.setting == "sup")
    settings = _settings_of(row, method, context).replace(seed=seed)
    kind = examples_kind(row, method)
    examples = context.examples(kind)
    settings.total_steps(len(examples))  # refuses too few
    development = context.development()
    backbone = context.backbone
    configured = ConfiguredMethod(method, settings, backbone.name, backbone.provenance.family)
    recipe = configured.recipe
    transfer = method.transfer_recipe(recipe)
    trained = {
        "method": method.name,
        "supervised": row.setting == "sup",
        **dataclasses.asdict(settings),
    }
    dtype = devices.choose_dtype("auto", str(backbone.device))
    data = {
        "precision": "bfloat16" if dtype == torch.bfloat16 else "float32",
        "examples": examples.sha256,
        "development": development.sha256(),
    }
    identity = {**identity_of(recipe, context), "trained": trained, **data}
    if transfer is not None:
        identity["transfer"] = {**transfer.to_dict(), "backbone": None}
    system = MeasuredSystem(
        row,
        identity,
        recipe,
        partial(_load_or_train, configured, kind, identity, context),
        fitted_on=kind,
        training={**trained, **data, "differs": _differences(row, method, settings)},
        transfer=transfer,
    )
    fitted_afterwards = form_of(row).fitted_afterwards
    if fitted_afterwards is None:
        return system
    return _fitted_after(system, _on_backbone(RECIPES[fitted_afterwards], context), examples)


def _load_or_train(
    configured: ConfiguredMethod, kind: str, identity: Facts, context: MeasurementContext
) -> TorchEncoder:
    """Return the encoder of cached weights, or train it on a new copy of the backbone."""
    backbone = context.open_backbone()
    tensors = context.cache.get_tensors(identity)
    if tensors is not None:
        tuned = tuned_weights(tensors)
        if tuned:
            backbone.tune(tuned)
        return TorchEncoder(configured.recipe, backbone, tensors)
    with context.cache.training_folder(identity) as folder:
        encoder, tensors = train_encoder(
            configured.method,
            configured.settings,
            context.examples(kind),
            context.development(),
            backbone,
            folder,
            dtype=identity["precision"],
        )
        context.cache.put_tensors(identity, tensors)
    return encoder


def _settings_of(
    row: PublishedRow, method: Method, context: MeasurementContext
) -> TrainingSettings:
    if context.paper and row.backbone in method.paper:
        preset = preset_for(method, row.backbone, paper=True)
    else:
        published = {short_name(name): name for name in method.paper}
        name = published.get(context.published or "", context.backbone_name)
        shape = shape_of_loaded(context.backbone)
        preset = preset_for(method, name, paper=context.paper, shape=shape)
    known = vars(preset.settings)
    changes = {name: value for name, value in context.changes.items() if name in known}
    # the form's are the subject of the row
    return preset.settings.replace(**{**changes, **form_of(row).changes})


def examples_kind(row: PublishedRow, method: Method) -> str:
    """Return the kind of a trained row's data in ``EXAMPLES``."""
    read = set(find_objective(method).layouts)
    kinds = [kind for kind, layouts in EXAMPLES.items() if read.intersection(layouts)]
    return kinds[-1] if row.setting == "sup" else kinds[0]


def _differences(row: PublishedRow, method: Method, settings: TrainingSettings) -> Facts | None:
    """Return what differs from the paper, setting -> ours, theirs; None if nothing is published.

    The seed does not count, nor what is the row's subject.
    """
    if not method.paper:
        return None
    seeded = settings.replace(seed=method.small.seed)
    return {
        difference["setting"]: [difference["value"], difference["paper"]]
        for difference in differences_from_paper(method, seeded, row.backbone)
        if difference["setting"] not in form_of(row).changes
    }


def _fitted_after(
    trained: MeasuredSystem, recipe: Recipe, examples: TrainingExamples
) -> MeasuredSystem:
    """Return the system of a recipe that is fitted on the backbone of a trained one."""
    sentences = [*examples.columns[0], *examples.columns[1]]

    def make() -> TorchEncoder:
        return fit_recipe(recipe, sentences, backbone=trained.encoder.backbone).encoder

    identity = {**trained.identity, "then": {**recipe.to_dict(), "backbone": None}}
    return dataclasses.replace(
        trained, identity=identity, recipe=recipe, make=make, transfer=None, runs=()
    )


#: Makes the system of a row, or raises the reason why it cannot.
SystemFactory = Callable[[PublishedRow, MeasurementContext], MeasuredSystem]


@dataclass(frozen=True)
class RowKind:
    """One kind of row."""

    make: SystemFactory | None = None
    time: str = "minutes"  #: of a row on two CPU cores, once data and weights are local
    #: message for rows that are never measured (or only with --train); {} is the row's argument
    why_not_measured: str = ""
    #: ``any`` language model; only the row's ``own``; or only ``words``, word vectors
    backbone: str = "any"
    searches: bool = False  #: a search comes before it can be named
    trains: bool = False  #: measured only on request

    def is_measured(self, *, train: bool) -> bool:
        """Return whether rows of this kind are measured; trained ones only with ``train``."""
        return not self.why_not_measured or (self.trains and train)


def _picture(row: PublishedRow, context: MeasurementContext) -> MeasuredSystem:
    if context.pictures is None:
        raise UsageError("a picture: drawn by the command, with matplotlib installed")
    return MeasuredSystem(row, {"picture": row.argument, **weights_of(context)})


def _encoding_with(recipe_of: Callable[[str], Recipe]) -> SystemFactory:
    return lambda row, context: system_of(recipe_of(row.argument), row, context)


def system_of(recipe: Recipe, row: PublishedRow, context: MeasurementContext) -> MeasuredSystem:
    """Return the system of a recipe that needs neither training nor fitting."""
    encoder = TorchEncoder(_on_backbone(recipe, context), context.backbone, {})
    identity = identity_of(encoder.recipe, context)
    return MeasuredSystem(row, identity, encoder.recipe, lambda: encoder)


def _fitted(row: PublishedRow, context: MeasurementContext) -> MeasuredSystem:
    """Fit on the corpus; rows published on NLI pairs are fitted on both sides of the triplets, if
    given.
    """
    kind = "corpus"
    if row.kind == "fitted-nli" and context.texts.triplets is not None:
        kind = "triplets"
        first, second, *_ = context.examples(kind).columns
        sentences = [*first, *second]
    else:
        sentences = context.sentences
    recipe = _on_backbone(RECIPES[row.argument], context)
    identity = {**identity_of(recipe, context), kind: context.text_facts(kind)["sha256"]}

    def fit() -> TorchEncoder:
        return fit_recipe(recipe, sentences, backbone=context.backbone).encoder

    return MeasuredSystem(row, identity, recipe, fit, fitted_on=kind)


def _ranked_head(row: PublishedRow, context: MeasurementContext) -> MeasuredSystem:
    """Return the published head, or on another backbone the head of the same rank."""
    rank, _, head = row.argument.partition(":")
    if not context.is_on(row.backbone):
        ranked = ranked_heads(context)
        if int(rank) > len(ranked):
            raise UsageError(
                f"{context.backbone_name!r} has {len(ranked)} heads, and this row needs the head of"
                f" rank {rank}"
            )
        head = ranked[int(rank) - 1]["head"]
    return system_of(Recipe(pooling=f"first-last/ditto:{head}"), row, context)


def _mask_tokens(row: PublishedRow, context: MeasurementContext) -> MeasuredSystem:
    recipe = _on_backbone(RECIPES["prompt-denoised"], context)
    return MeasuredSystem(row, {**identity_of(recipe, context), "sentence": row.argument}, recipe)


def ranked_heads(context: MeasurementContext) -> list[Facts]:
    """Return all heads, the best on development pairs first, with their TF-IDF correlations."""
    task = context.development()
    backbone = context.backbone
    key = {
        "search": "heads",
        **weights_of(context),
        "data": context.tasks([task.label]).facts,
        "corpus": context.corpus_facts["sha256"],
    }
    cached = context.cache.get(key)
    if cached is None:
        search = search_heads(
            TorchEncoder(Recipe(backbone=backbone.name), backbone, {}),
            task,
            context.sentences,
            states=["first-last"],
            top=backbone.n_layers * backbone.n_heads,
        )
        heads = []
        for ranked in search.ranked:
            head = Recipe(pooling=ranked.choice).parts.pooling.head
            tfidf = None
            if ranked.tfidf is not None:
                tfidf = {name: round(value, 4) for name, value in asdict(ranked.tfidf).items()}
            heads.append({"head": str(head), "tfidf": tfidf})
        cached = {"heads": heads}
        context.cache.put(key, cached)
    return list(cached["heads"])


def _tied(row: PublishedRow, context: MeasurementContext) -> MeasuredSystem:
    """PromptBERT, table 12: rows of a backbone with tied or untied output embeddings.

    Such a backbone is the user's own pre-training.
    """
    backbone = context.backbone
    is_tied = torch.equal(backbone.head.output_embeddings.cpu(), backbone.word_embeddings.cpu())
    if is_tied != (row.kind == "tied"):
        raise UsageError(
            f"needs a backbone with {row.kind} output embeddings: that of `promptcli pretrain` with"
            f" the setting tied={str(not is_tied).lower()}"
        )
    return _pooled(row, context)


def _on_backbone(recipe: Recipe, context: MeasurementContext) -> Recipe:
    return recipe.replace(backbone=context.backbone.name).resolve()


def _named_recipe(row: PublishedRow, context: MeasurementContext) -> MeasuredSystem:
    return system_of(with_head(RECIPES[row.argument], context), row, context)


def with_head(recipe: Recipe, context: MeasurementContext) -> Recipe:
    """Return a recipe; a Ditto recipe gets the given head, if any."""
    if context.head is None or not recipe.parts.pooling.lacks_head:
        return recipe
    return recipe.replace(pooling=f"{recipe.pooling}:{context.head}")


_pooled = _encoding_with(lambda pooling: Recipe(pooling=pooling))
_prompted = _encoding_with(lambda template: RECIPES["prompt"].replace(prompt=template))
_word_vectors = _encoding_with(lambda name: Recipe(pooling="static/avg"))

#: By kind of row.
SYSTEMS: dict[str, RowKind] = {
    "recipe": RowKind(_named_recipe),
    "own": RowKind(_named_recipe, backbone="own"),
    "pooling": RowKind(_pooled),
    "tied": RowKind(_tied),
    "untied": RowKind(_tied),
    "template": RowKind(_prompted),
    "word-vectors": RowKind(_word_vectors, backbone="words"),
    "fitted": RowKind(_fitted),
    "fitted-nli": RowKind(_fitted),
    "head": RowKind(_ranked_head, searches=True),
    "tokens": RowKind(_mask_tokens),
    "backbone": RowKind(lambda row, context: MeasuredSystem(row, weights_of(context))),
    "picture": RowKind(_picture),
    "settings": RowKind(
        time="-", why_not_measured="settings, no figures: `promptcli train --paper` takes them"
    ),
    "trained": RowKind(
        _trained,
        "hours, GPU",
        "training: `promptcli reproduce --train` does it",
        trains=True,
    ),
    "vectors": RowKind(
        time="-",
        why_not_measured="another program's: `promptcli eval --vectors` scores {}.npy",
    ),
    "list": RowKind(time="-", why_not_measured="a list of words, no figures: held in {}"),
}
