"""The context of measurements, the kinds of rows, and how each row's encoder is built, fitted or
trained.
"""

import dataclasses
import functools
import hashlib
import json
import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from promptcli.backbones.backbone import Backbone
from promptcli.backbones.devices import choose_dtype
from promptcli.data.dialect import DEFINITIONS, LABELLED_PAIRS, PAIRS, SENTENCES, TRIPLETS
from promptcli.data.senteval import tasks_from
from promptcli.data.sources import TrainingExamples, fitting_sentences, training_examples
from promptcli.data.tasks import STSTask, load_tasks, task_names
from promptcli.encoder.encoder import Encoder, tuned_weights
from promptcli.encoder.pooling.ditto import KNOWN_HEADS
from promptcli.errors import NotFoundError, PromptcliError, UsageError
from promptcli.recipe import RECIPES, Recipe, split_spec
from promptcli.reproducing.published import PublishedRow, Texts, same_backbone, short_name
from promptcli.searching.searches import search_heads
from promptcli.storage.cache import Cache
from promptcli.storage.files import temporary_folder
from promptcli.training.batches import steps_of
from promptcli.training.fits import fit_recipe
from promptcli.training.methods import find_method
from promptcli.training.methods.method import Method
from promptcli.training.methods.training_settings import TrainingSettings
from promptcli.training.objectives import find_objective
from promptcli.training.processes import start_processes
from promptcli.training.run import TrainingRun

PROTOCOL = "senteval"  #: the papers' pairs and text

#: Training data by their option: the layouts allowed, and the columns in words.
EXAMPLES: dict[str, tuple[tuple[tuple[str, ...], ...], str]] = {
    "corpus": ((SENTENCES,), "sentences alone"),
    "triplets": ((TRIPLETS, PAIRS), "columns sent0, sent1 and perhaps hard_neg"),
    "labelled": ((LABELLED_PAIRS,), "columns premise, hypothesis, label"),
    "definitions": ((DEFINITIONS,), "columns word, definition"),
}


@dataclass(frozen=True)
class MeasureData:
    """The data of one measure."""

    #: data set -> hash, size, ...; JSON-ready
    facts: dict[str, dict[str, Any]] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)  #: missing data set -> why
    content: Any = None  #: for the measure alone


@dataclass(eq=False)
class MeasurementContext:
    """One backbone and the data to measure it on."""

    backbone_name: str  #: a shipped name, a folder, a hub id, or a file of word vectors
    open_backbone: Callable[[], Backbone]  #: loads a new copy, since training changes it
    cache: Cache  #: of figures and trained weights
    data_dir: Path | None = None  #: SentEval folder, or None for the hub
    #: data that rows are fitted, counted and trained on
    texts: Texts = field(default_factory=Texts)
    seeds: Sequence[int] = ()  #: of the runs of every trained row; none: such rows are left out
    head: str | None = None  #: of Ditto's rows; None: the published one of the backbone
    _loaded: dict[str, MeasureData] = field(default_factory=dict, init=False)
    _examples: dict[str, TrainingExamples] = field(default_factory=dict, init=False)

    @functools.cached_property
    def backbone(self) -> Backbone:
        return self.open_backbone()

    @functools.cached_property
    def backbone_facts(self) -> dict[str, Any]:
        """Identity of the backbone, JSON-ready, without its folder."""
        provenance = self.backbone.provenance
        return {
            "name": short_name(self.backbone_name),
            "family": provenance.family,
            "weights_sha256": provenance.weights_sha256,
            "tokenizer_sha256": provenance.tokenizer_sha256,
            "dtype": str(self.backbone.dtype).removeprefix("torch."),
        }

    @functools.cached_property
    def sentences(self) -> list[str]:
        with tasks_from(self.data_dir):
            return fitting_sentences(self.texts.corpus)

    @functools.cached_property
    def corpus_facts(self) -> dict[str, Any]:
        """Identity of the sentences, JSON-ready, without their folder."""
        digest = hashlib.sha256("\n".join(self.sentences).encode()).hexdigest()
        return {
            "name": Path(self.texts.corpus).name,
            "sentences": len(self.sentences),
            "sha256": digest,
        }

    def examples(self, kind: str) -> TrainingExamples:
        """Return the training data of a kind in ``EXAMPLES``."""
        source, (layouts, columns) = getattr(self.texts, kind), EXAMPLES[kind]
        if source is not None and kind not in self._examples:
            known = dict.fromkeys(
                [*layouts, *(layout for kinds, _ in EXAMPLES.values() for layout in kinds)]
            )
            self._examples[kind] = training_examples(source, layouts=tuple(known))
        examples = self._examples.get(kind)
        if examples is None or (examples.layout or SENTENCES) not in layouts:
            other = "" if source is None else f"; {Path(source).name} is not such a file"
            raise UsageError(f"rows trained on `{kind}` need a file with {columns}{other}")
        return examples

    def example_facts(self, kind: str) -> dict[str, Any]:
        """Return the identity of those examples, JSON-ready, without their folder."""
        examples = self.examples(kind)
        return {
            "name": Path(getattr(self.texts, kind)).name,
            "examples": len(examples),
            "sha256": examples.sha256,
        }

    @property
    def missing(self) -> dict[str, str]:
        return {
            name: reason
            for loaded in self._loaded.values()
            for name, reason in loaded.missing.items()
        }

    def tasks(self, names: Sequence[str]) -> MeasureData:
        """Return STS tasks; ``content`` is the list of those with data."""

        def load() -> MeasureData:
            loaded = load_tasks(self.data_dir, task_names(names), PROTOCOL)
            facts: dict[str, dict[str, Any]] = {
                task.label: {
                    "pairs": len(task.pairs()),
                    "expected_pairs": task.expected_pairs,
                    "text": task.text,
                    "sha256": task.sha256(),
                }
                for task in loaded.tasks
            }
            return MeasureData(facts, loaded.missing, loaded.tasks)

        return self.once(" ".join(names), load)

    def development(self) -> STSTask:
        """Return the pairs that trained weights and heads are chosen by, as in the papers."""
        loaded = self.tasks(["STS-B:dev"])
        if loaded.missing:
            raise NotFoundError("no data: STS-B:dev")
        task: STSTask = loaded.content[0]
        return task

    def once(self, name: str, load: Callable[[], MeasureData]) -> MeasureData:
        """Return the data of a name, loaded the first time."""
        if name not in self._loaded:
            self._loaded[name] = load()
        return self._loaded[name]


def hash_of(value: Any) -> str:
    """Return the hex SHA-256 of JSON-ready values."""
    return hashlib.sha256(
        json.dumps(value, sort_keys=True, ensure_ascii=False).encode()
    ).hexdigest()


_OF_BACKBONE = ("weights_sha256", "tokenizer_sha256", "dtype")


@dataclass(eq=False)
class MeasuredSystem:
    """The encoder that a row is measured on."""

    row: PublishedRow
    identity: dict[str, Any]  #: everything but the data that its figures depend on; JSON-ready
    recipe: Recipe | None = None  #: every name resolved; None if nothing is encoded
    make: Callable[[], Encoder] | None = None  #: builds the encoder
    slow: bool = False  #: to build, so it is built when its turn comes
    transfer: Recipe | None = None  #: the recipe of transfer tasks, if it differs
    runs: "Sequence[MeasuredSystem]" = ()  #: one for each of several seeds; else itself

    def __post_init__(self) -> None:
        self.runs = self.runs or (self,)

    @functools.cached_property
    def encoder(self) -> Encoder:
        """The encoder; fitted or trained now if necessary."""
        assert self.make is not None, f"{self.row.run} encodes nothing"
        return self.make()


Systems = Sequence[MeasuredSystem]


def grouped_by_input(systems: Iterable[MeasuredSystem]) -> list[list[MeasuredSystem]]:
    """Return systems in groups that share a forward pass.

    Slow ones come last, each alone: a kill loses at most one.
    """
    groups: dict[object, list[MeasuredSystem]] = {}
    for system in systems:
        key = system if system.slow else system.make and system.encoder.input_key
        groups.setdefault(key, []).append(system)
    return sorted(groups.values(), key=lambda members: members[0].slow)


def weights_of(context: MeasurementContext) -> dict[str, str]:
    """Return the identity of the backbone without its name."""
    return {name: context.backbone_facts[name] for name in _OF_BACKBONE}


def identity_of(recipe: Recipe, context: MeasurementContext) -> dict[str, Any]:
    """Return everything that the figures of a recipe on a context's backbone depend on."""
    return {"recipe": {**recipe.to_dict(), "backbone": None}, **weights_of(context)}


def recipe_id(system: MeasuredSystem) -> str:
    """Return a short hash of the recipe and its fitting data, the same for every backbone."""
    return hash_of(
        {key: value for key, value in system.identity.items() if key not in _OF_BACKBONE}
    )[:12]


#: Method, changes of its settings, recipe fitted afterwards on the sentences of the examples.
#: DCPCSE rows differ in the masked-LM term, whatever a backbone's own settings (its table 2).
FORMS: dict[str, tuple[str, dict[str, Any], str | None]] = {
    **{
        name: (name, {}, None)
        for name in (
            "simcse",
            "promptbert",
            "cotbert",
            "isbert",
            "consert",
            "sbert",
            "defsent",
            "optiprompt",
            "scpcse",
        )
    },
    "promptbert-one-template": ("promptbert", {"two_templates": False, "denoising": False}, None),
    "promptbert-no-denoising": ("promptbert", {"denoising": False}, None),
    "sbert-flow": ("sbert", {}, "flow"),
    "sbert-whitening": ("sbert", {}, "whitening"),
    "defsent-cls": ("defsent", {"pool": "cls"}, None),
    "defsent-max": ("defsent", {"pool": "max"}, None),
    "dcpcse": ("dcpcse", {"mlm_weight": 0.0}, None),
    "dcpcse-mlm": ("dcpcse", {"mlm_weight": 0.1}, None),
    **{
        f"dcpcse-length-{length}": ("dcpcse", {"mlm_weight": 0.0, "prefix_length": length}, None)
        for length in (1, 5, 10, 16)
    },
}


def _lacks_training(row: PublishedRow, context: MeasurementContext) -> str | None:
    try:
        steps_of(_method(row, context)[1], context.examples(examples_kind(row, context)).sizes)
        context.development()
        _ = context.corpus_facts
    except PromptcliError as error:
        return f"training: {error}"
    return None


def _trained(row: PublishedRow, context: MeasurementContext) -> MeasuredSystem:
    """Return a row's system; it is trained when its encoder is first used."""
    runs = [_run(row, context, seed) for seed in context.seeds]
    if len(runs) == 1:
        return runs[0]
    together = {**runs[0].identity["trained"], "seed": list(context.seeds)}
    return MeasuredSystem(row, {**runs[0].identity, "trained": together}, runs[0].recipe, runs=runs)


def _run(row: PublishedRow, context: MeasurementContext, seed: int) -> MeasuredSystem:
    method, settings = _method(row, context)
    settings = settings.replace(seed=seed)
    examples, development = context.examples(examples_kind(row, context)), context.development()
    backbone = context.backbone
    recipe = method.recipe(backbone.name, backbone.provenance.family, settings)
    transfer = method.transfer_recipe(recipe)
    mixed = choose_dtype("auto", str(backbone.device)) == torch.bfloat16
    identity = {
        **identity_of(recipe, context),
        **({} if transfer is None else {"transfer": {**transfer.to_dict(), "backbone": None}}),
        "trained": {
            "method": method.name,
            "supervised": row.setting == "sup",
            **dataclasses.asdict(settings),
        },
        "precision": "bfloat16" if mixed else "float32",
        "examples": examples.sha256,
        "development": development.sha256(),
    }

    def make() -> Encoder:
        """Return the encoder of cached weights, or train and cache them, on a new copy of the
        backbone.
        """
        copy = context.open_backbone()
        tensors = context.cache.get_tensors(identity)
        if tensors is not None:
            if tuned := tuned_weights(tensors):
                copy.tune(tuned)
            return Encoder(recipe, copy, tensors)
        chosen = find_objective(method).choose(examples, settings, copy)
        run = TrainingRun(method, settings, chosen, "corpus", development)
        with temporary_folder() as folder:
            processes = start_processes(str(copy.device), mixed=mixed)
            encoder, trained = run.train(run.begin(copy, folder, processes), folder, processes)
        context.cache.put_tensors(identity, trained.tensors)
        return encoder

    then = FORMS[row.argument][2]
    if then is None:
        return MeasuredSystem(row, identity, recipe, make, slow=True, transfer=transfer)
    last = RECIPES[then].replace(backbone=backbone.name).explicit()
    sentences = [text for column in examples.columns[:2] for text in column]
    identity_of_both = {**identity, "then": {**last.to_dict(), "backbone": None}}
    fit = lambda: fit_recipe(last, sentences, backbone=make().backbone).encoder  # noqa: E731
    return MeasuredSystem(row, identity_of_both, last, fit, slow=True)


def examples_kind(row: PublishedRow, context: MeasurementContext) -> str:
    """Return the kind of a trained row's data in ``EXAMPLES``."""
    read = set(find_objective(_method(row, context)[0]).layouts)
    kinds = [kind for kind, (layouts, _) in EXAMPLES.items() if read & set(layouts)]
    return kinds[-1] if row.setting == "sup" else kinds[0]


def _method(row: PublishedRow, context: MeasurementContext) -> tuple[Method, TrainingSettings]:
    name, changes, _ = FORMS[row.argument]
    method = find_method(name, supervised=row.setting == "sup")
    settings = method.settings(short_name(context.backbone_name), context.backbone.width)
    return method, settings.replace(**changes)


Make = Callable[[PublishedRow, MeasurementContext], MeasuredSystem]
Lacks = Callable[[PublishedRow, MeasurementContext], str | None]


@dataclass(frozen=True)
class RowKind:
    """One kind of row."""

    make: Make | None = None  #: from a row and a context to its system; None: not measured
    time: str = "minutes"  #: of a row on two processor cores, once data and weights are local
    absent: str = (
        ""  #: why a row is not measured, as ``REASON: {}``; the braces are the row's argument
    )
    backbone: str = "any"  #: ``any``; only the row's ``own``; or ``none``
    lacks: Lacks = lambda row, context: None  #: the missing input of a row
    trains: bool = False  #: measured only on request

    def on_backbone(self, *, train: bool) -> bool:
        """Return whether its rows are measured on a backbone, trained ones only with ``train``."""
        return self.make is not None and self.backbone != "none" and (train or not self.trains)


def _encodes(recipe_of: Callable[[str], Recipe]) -> Make:
    return lambda row, context: _plain(recipe_of(row.argument), row, context)


def _plain(recipe: Recipe, row: PublishedRow, context: MeasurementContext) -> MeasuredSystem:
    encoder = Encoder(_on(recipe, context), context.backbone, {})
    return MeasuredSystem(
        row, identity_of(encoder.recipe, context), encoder.recipe, lambda: encoder
    )


def _fitted(row: PublishedRow, context: MeasurementContext) -> MeasuredSystem:
    """Fit on the corpus; rows published on NLI pairs on both sides of the triplets, if given."""
    if row.kind == "fitted-nli" and context.texts.triplets is not None:
        examples = context.examples("triplets")
        sentences, source = (
            [*examples.columns[0], *examples.columns[1]],
            {"triplets": examples.sha256},
        )
    else:
        sentences, source = context.sentences, {"corpus": context.corpus_facts["sha256"]}
    recipe = _on(RECIPES[row.argument], context)
    identity = {**identity_of(recipe, context), **source}
    return MeasuredSystem(
        row,
        identity,
        recipe,
        lambda: fit_recipe(recipe, sentences, backbone=context.backbone).encoder,
    )


def _head(row: PublishedRow, context: MeasurementContext) -> MeasuredSystem:
    """Return the published head; on another backbone the head of the same rank there."""
    rank, head = split_spec(row.argument)
    if not same_backbone(row.backbone, context.backbone_name):
        ranked = ranked_heads(context)
        if int(rank) > len(ranked):
            raise UsageError(
                f"{context.backbone_name!r} has {len(ranked)} heads, this row is the {rank}. best"
            )
        head = ranked[int(rank) - 1]["head"]
    return _plain(Recipe(pooling=f"first-last/ditto:{head}"), row, context)


def _tokens(row: PublishedRow, context: MeasurementContext) -> MeasuredSystem:
    recipe = _on(RECIPES["prompt-denoised"], context)
    return MeasuredSystem(row, {**identity_of(recipe, context), "sentence": row.argument}, recipe)


def ranked_heads(context: MeasurementContext) -> list[dict[str, Any]]:
    """Return all heads on first-last states with their TF-IDF correlations, the best on development
    pairs first.
    """
    task, backbone = context.development(), context.backbone
    facts = context.tasks([task.label]).facts
    key = {
        "search": "heads",
        **weights_of(context),
        "data": facts,
        "corpus": context.corpus_facts["sha256"],
    }
    cached = context.cache.get(key)
    if cached is None:
        encoder, count = (
            Encoder(Recipe(backbone=backbone.name), backbone, {}),
            backbone.n_layers * backbone.n_heads,
        )
        ranked = search_heads(
            encoder, task, context.sentences, states=["first-last"], top=count
        ).ranked
        heads = [
            {"head": row.choice.partition(":")[2], "tfidf": row.tfidf and row.tfidf.to_dict()}
            for row in ranked
        ]
        cached = {"heads": heads}
        context.cache.put(key, cached)
    return list(cached["heads"])


def _lacks_tie(tied: bool) -> Lacks:
    """PromptBERT, table 12: rows of the user's own pre-training, with tied or untied output
    embeddings.
    """
    kind, command = (
        ("tied", "promptcli pretrain")
        if tied
        else ("untied", "promptcli pretrain --set tied=false")
    )

    def lacks(row: PublishedRow, context: MeasurementContext) -> str | None:
        head = context.backbone.head
        fits = torch.equal(head.rows.cpu(), context.backbone.token_rows.cpu()) is tied
        return None if fits else f"needs a backbone with {kind} output embeddings: `{command}`"

    return lacks


def _lacks_recipe(row: PublishedRow, context: MeasurementContext) -> str | None:
    return None if row.argument in RECIPES else f"not built here: {row.argument}"


def _lacks_head(row: PublishedRow, context: MeasurementContext) -> str | None:
    needed = RECIPES[row.argument].pooling.endswith("/ditto") and context.head is None
    name = context.backbone.name
    if not needed or name in KNOWN_HEADS:
        return None
    return (
        f"needs a head: give `head`; `promptcli ditto-search --model {shlex.quote(name)}` finds one"
    )


def _on(recipe: Recipe, context: MeasurementContext) -> Recipe:
    return recipe.replace(backbone=context.backbone.name).explicit()


def _named(row: PublishedRow, context: MeasurementContext) -> MeasuredSystem:
    """Return the recipe of that name, Ditto's with the head that is given, if any."""
    recipe = RECIPES[row.argument]
    if context.head is not None and recipe.pooling.endswith("/ditto"):
        recipe = recipe.replace(pooling=f"{recipe.pooling}:{context.head}")
    return _plain(recipe, row, context)


_pooled = _encodes(lambda pooling: Recipe(pooling=pooling))

#: By the kind that rows are of.
SYSTEMS: dict[str, RowKind] = {
    "recipe": RowKind(_named, lacks=_lacks_head),
    "own": RowKind(_named, backbone="own", lacks=_lacks_head),
    "pooling": RowKind(_pooled),
    "tied": RowKind(_pooled, lacks=_lacks_tie(True)),
    "untied": RowKind(_pooled, lacks=_lacks_tie(False)),
    "template": RowKind(_encodes(lambda template: RECIPES["prompt"].replace(prompt=template))),
    "word-vectors": RowKind(_encodes(lambda name: Recipe(pooling="static/avg")), backbone="own"),
    "fitted": RowKind(_fitted, lacks=_lacks_recipe),
    "fitted-nli": RowKind(_fitted, lacks=_lacks_recipe),
    "head": RowKind(_head),
    "tokens": RowKind(_tokens),
    "backbone": RowKind(lambda row, context: MeasuredSystem(row, weights_of(context))),
    "picture": RowKind(
        time="-",
        absent="a picture, no figures: `promptcli analyze --plot` draws {}",
        backbone="none",
    ),
    "settings": RowKind(
        lambda row, context: MeasuredSystem(
            row, {"settings": [row.run, row.backbone, row.setting]}
        ),
        "seconds",
        backbone="none",
    ),
    "trained": RowKind(
        _trained,
        "hours, GPU",
        "training: `promptcli reproduce --train` does it",
        lacks=_lacks_training,
        trains=True,
    ),
    "vectors": RowKind(
        time="-",
        absent="another program's: `promptcli eval --vectors` scores {}.npy",
        backbone="none",
    ),
    "list": RowKind(time="-", absent="a list of words, no figures: held in {}", backbone="none"),
}
