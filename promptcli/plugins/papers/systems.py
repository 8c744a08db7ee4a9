"""The kinds of published rows, and how the encoder of a row is made: the entries of ``SYSTEMS``."""

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
from promptcli.training.trainer import train_encoder


def hash_of(value: Any) -> str:
    """Return the hex SHA-256 of JSON-ready values."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


@dataclass(eq=False)
class MeasuredSystem:
    """What is measured for a row: an encoder, which is made when it is first needed."""

    row: PublishedRow
    #: everything that determines its scores, except the backbone and the tasks' data; JSON-ready
    identity: Facts
    recipe: Recipe | None = None  #: every name resolved; None if nothing is encoded
    make: Callable[[], TorchEncoder] | None = None  #: builds the encoder, by training if necessary
    fitted_on: str | None = None  #: the kind in ``EXAMPLES`` of its fitting or training data
    #: the settings and data of its training, and the differences from the paper; JSON-ready
    training: Facts | None = None
    transfer: Recipe | None = None  #: the recipe of transfer tasks, if it differs
    runs: "Sequence[MeasuredSystem]" = ()  #: a system for each seed, if there are several

    @functools.cached_property
    def id(self) -> str:
        """A hash; on a backbone, systems with the same hash have the same scores."""
        return hash_of(self.identity)

    @functools.cached_property
    def encoder(self) -> TorchEncoder:
        assert self.make is not None, f"{self.row.run} encodes nothing"
        return self.make()


def grouped_by_input(systems: Iterable[MeasuredSystem]) -> list[list[MeasuredSystem]]:
    """Return systems in groups that share a forward pass.

    Trained systems come last, each in its own group, so a killed run loses at most one of them.
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


def identity_of(recipe: Recipe) -> Facts:
    """Return the fields of a recipe, JSON-ready; the backbone is left out."""
    return {**recipe.to_dict(), "backbone": None}


@dataclass(frozen=True)
class TrainedForm:
    """How a row of the kind ``trained`` is trained."""

    method: str
    #: settings of the method that are the subject of the row
    changes: Mapping[str, Any] = field(default_factory=dict)
    #: recipe that is fitted on the training sentences after the training
    fitted_afterwards: str | None = None


#: By the argument of a row; any other argument is a method. The rows of DCPCSE set the masked-LM
#: term, which also depends on the backbone (its table 2).
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


def _trained_system(row: PublishedRow, context: MeasurementContext) -> MeasuredSystem:
    """Return the system of a row that is trained, once for each seed of the context."""
    runs = [_trained_system_of_seed(seed, row, context) for seed in context.seeds]
    first = runs[0]
    if len(runs) == 1:
        return first
    assert first.training is not None
    seeds = {"seed": list(context.seeds)}
    identity = {**first.identity, "trained": first.identity["trained"] | seeds}
    return dataclasses.replace(
        first, identity=identity, make=None, training=first.training | seeds, runs=runs
    )


def _trained_system_of_seed(
    seed: int, row: PublishedRow, context: MeasurementContext
) -> MeasuredSystem:
    form = FORMS.get(row.argument) or TrainedForm(row.argument)
    is_supervised = row.setting == "sup"
    method = find_method(form.method, supervised=is_supervised)
    settings = _settings_of(row, method, form, context).replace(seed=seed)
    readable_layouts = set(find_objective(method).layouts)
    kinds = [kind for kind, layouts in EXAMPLES.items() if readable_layouts.intersection(layouts)]
    kind = kinds[-1] if is_supervised else kinds[0]
    examples = context.examples(kind)
    settings.total_steps(len(examples))  # refuses too few examples
    backbone = context.backbone
    configured = ConfiguredMethod(method, settings, backbone.name, backbone.provenance.family)
    recipe = configured.recipe
    transfer = method.transfer_recipe(recipe)
    trained = {"method": method.name, "supervised": is_supervised, **dataclasses.asdict(settings)}
    dtype = devices.choose_dtype("auto", str(backbone.device))
    data = {
        "precision": "bfloat16" if dtype == torch.bfloat16 else "float32",
        "examples": examples.sha256,
        "development": context.development().sha256(),
    }
    identity = {"recipe": identity_of(recipe), "trained": trained, **data}
    if transfer is not None:
        identity["transfer"] = identity_of(transfer)
    differences = _differences(row, method, settings, form)
    system = MeasuredSystem(
        row,
        identity,
        recipe,
        partial(_load_or_train, configured, kind, context.backbone_identity | identity, context),
        fitted_on=kind,
        training={**trained, **data, "differs": differences},
        transfer=transfer,
    )
    if form.fitted_afterwards is None:
        return system
    fitted_recipe = recipe_on(RECIPES[form.fitted_afterwards], context)
    return _system_fitted_afterwards(system, fitted_recipe, examples)


def _settings_of(
    row: PublishedRow, method: Method, form: TrainedForm, context: MeasurementContext
) -> TrainingSettings:
    """Return the settings of a trained row: the preset, the user's changes, and the row's own."""
    if context.paper and row.backbone in method.paper:
        preset = preset_for(method, row.backbone, paper=True)
    else:
        published = {short_name(name): name for name in method.paper}
        name = published.get(context.published or "", context.backbone_name)
        shape = shape_of_loaded(context.backbone)
        preset = preset_for(method, name, paper=context.paper, shape=shape)
    fields = vars(preset.settings)
    changes = {name: value for name, value in context.changes.items() if name in fields}
    return preset.settings.replace(**{**changes, **form.changes})


def _differences(
    row: PublishedRow, method: Method, settings: TrainingSettings, form: TrainedForm
) -> Facts | None:
    """Return the settings that differ from the paper's, setting -> ours, the paper's.

    The seed and the subject of the row do not count. None if no settings are published.
    """
    if not method.paper:
        return None
    with_default_seed = settings.replace(seed=method.mini_bert_settings.seed)
    return {
        difference["setting"]: [difference["value"], difference["paper"]]
        for difference in differences_from_paper(method, with_default_seed, row.backbone)
        if difference["setting"] not in form.changes
    }


def _load_or_train(
    configured: ConfiguredMethod, kind: str, key: Facts, context: MeasurementContext
) -> TorchEncoder:
    """Return the encoder of a training run: from the cache, or trained on a new backbone."""
    backbone = context.open_backbone()
    tensors = context.cache.get_tensors(key)
    if tensors is not None:
        tuned = tuned_weights(tensors)
        if tuned:
            backbone.tune(tuned)
        return TorchEncoder(configured.recipe, backbone, tensors)
    with context.cache.training_folder(key) as folder:
        encoder, tensors = train_encoder(
            configured.method,
            configured.settings,
            context.examples(kind),
            context.development(),
            backbone,
            folder,
            dtype=key["precision"],
        )
        context.cache.put_tensors(key, tensors)
    return encoder


def _system_fitted_afterwards(
    trained: MeasuredSystem, recipe: Recipe, examples: TrainingExamples
) -> MeasuredSystem:
    """Return the system of a recipe that is fitted on the backbone of a trained system."""
    sentences = [*examples.columns[0], *examples.columns[1]]

    def fit() -> TorchEncoder:
        return fit_recipe(recipe, sentences, backbone=trained.encoder.backbone).encoder

    identity = {**trained.identity, "then": identity_of(recipe)}
    return dataclasses.replace(trained, identity=identity, recipe=recipe, make=fit, transfer=None)


#: Makes the system of a row, or raises a ``PromptcliError`` with the reason why it cannot.
SystemFactory = Callable[[PublishedRow, MeasurementContext], MeasuredSystem]


@dataclass(frozen=True)
class RowKind:
    """A kind of rows."""

    make: SystemFactory | None = None  #: None if these rows are never measured
    time: str = "minutes"  #: to measure a row on two CPU cores, without downloads
    #: the message if rows are not measured; {} is the row's argument
    why_not_measured: str = ""
    #: the backbones that it takes: ``any`` language model, the row's ``own``, or word vectors
    #: (``words``)
    backbone: str = "any"
    searches: bool = False  #: whether making a system takes a search of heads
    trains: bool = False  #: whether rows are trained, which is done only on request

    def is_measured(self, *, train: bool) -> bool:
        """Return whether rows of this kind are measured, if training is asked for or not."""
        return not self.why_not_measured or (self.trains and train)


def recipe_on(recipe: Recipe, context: MeasurementContext) -> Recipe:
    """Return a recipe on a context's backbone; a Ditto recipe without a head gets the given one."""
    if context.head is not None and recipe.parts.pooling.lacks_head:
        recipe = recipe.replace(pooling=f"{recipe.pooling}:{context.head}")
    return recipe.replace(backbone=context.backbone.name).resolve()


def system_of(recipe: Recipe, row: PublishedRow, context: MeasurementContext) -> MeasuredSystem:
    """Return the system of a recipe that needs neither training nor fitting."""
    encoder = TorchEncoder(recipe_on(recipe, context), context.backbone, {})
    identity = {"recipe": identity_of(encoder.recipe)}
    return MeasuredSystem(row, identity, encoder.recipe, lambda: encoder)


def _encoding_with(recipe_of: Callable[[str], Recipe]) -> SystemFactory:
    """Return a factory for the recipe that a row's argument describes."""
    return lambda row, context: system_of(recipe_of(row.argument), row, context)


_named_system = _encoding_with(lambda name: RECIPES[name])


def _picture_system(row: PublishedRow, context: MeasurementContext) -> MeasuredSystem:
    if context.pictures is None:
        raise UsageError("a picture: drawn by the command, with matplotlib installed")
    return MeasuredSystem(row, {"picture": row.argument})


def _fitted_system(row: PublishedRow, context: MeasurementContext) -> MeasuredSystem:
    """Return the system of a recipe that is fitted on the corpus.

    A row that the paper fitted on NLI pairs is fitted on the pairs of the triplets, if given.
    """
    kind = "corpus"
    if row.kind == "fitted-nli" and context.texts.triplets is not None:
        kind = "triplets"
        first, second, *_ = context.examples(kind).columns
        sentences = [*first, *second]
    else:
        sentences = context.sentences
    recipe = recipe_on(RECIPES[row.argument], context)
    identity = {"recipe": identity_of(recipe), kind: context.text_facts(kind)["sha256"]}

    def fit() -> TorchEncoder:
        return fit_recipe(recipe, sentences, backbone=context.backbone).encoder

    return MeasuredSystem(row, identity, recipe, fit, fitted_on=kind)


def _ranked_head_system(row: PublishedRow, context: MeasurementContext) -> MeasuredSystem:
    """Return the system of the published head, or on another backbone of the head with its rank."""
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


def _mask_tokens_system(row: PublishedRow, context: MeasurementContext) -> MeasuredSystem:
    recipe = recipe_on(RECIPES["prompt-denoised"], context)
    identity = {"recipe": identity_of(recipe), "sentence": row.argument}
    return MeasuredSystem(row, identity, recipe)


def ranked_heads(context: MeasurementContext) -> list[Facts]:
    """Return all heads and their correlations with TF-IDF, the best on development pairs first."""
    task = context.development()
    backbone = context.backbone
    key = {
        "search": "heads",
        **context.backbone_identity,
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


def _tied_system(row: PublishedRow, context: MeasurementContext) -> MeasuredSystem:
    """Return the system of a row whose backbone must have tied, or untied, output embeddings.

    Source: PromptBERT, table 12. Users pre-train such a backbone themselves.
    """
    backbone = context.backbone
    is_tied = torch.equal(backbone.head.output_embeddings.cpu(), backbone.word_embeddings.cpu())
    if is_tied != (row.kind == "tied"):
        raise UsageError(
            f"needs a backbone with {row.kind} output embeddings: that of `promptcli pretrain` with"
            f" the setting tied={str(not is_tied).lower()}"
        )
    return system_of(Recipe(pooling=row.argument), row, context)


#: The kinds of rows by name.
SYSTEMS: dict[str, RowKind] = {
    "recipe": RowKind(_named_system),
    "own": RowKind(_named_system, backbone="own"),
    "pooling": RowKind(_encoding_with(lambda pooling: Recipe(pooling=pooling))),
    "tied": RowKind(_tied_system),
    "untied": RowKind(_tied_system),
    "template": RowKind(_encoding_with(lambda prompt: RECIPES["prompt"].replace(prompt=prompt))),
    "word-vectors": RowKind(_encoding_with(lambda _: RECIPES["static-avg"]), backbone="words"),
    "fitted": RowKind(_fitted_system),
    "fitted-nli": RowKind(_fitted_system),
    "head": RowKind(_ranked_head_system, searches=True),
    "tokens": RowKind(_mask_tokens_system),
    "backbone": RowKind(lambda row, context: MeasuredSystem(row, {})),
    "picture": RowKind(_picture_system),
    "settings": RowKind(
        time="-", why_not_measured="settings, no figures: `promptcli train --paper` takes them"
    ),
    "trained": RowKind(
        _trained_system,
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
