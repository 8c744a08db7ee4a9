"""Trained rows: a method of the papers trained now, a run for each seed; its numbers are kept in the cache."""

import dataclasses
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from promptcli.backbones.devices import choose_dtype
from promptcli.data.tasks import STSTask
from promptcli.data.training_examples import TrainingExamples
from promptcli.encoder.encoder import Encoder, tuned_weights
from promptcli.errors import PromptcliError
from promptcli.fitting.fits import fit
from promptcli.notes import working
from promptcli.recipe import RECIPES
from promptcli.reproducing.measured_system import MeasuredSystem, identity_of
from promptcli.reproducing.measurement_context import EXAMPLES, MeasurementContext
from promptcli.reproducing.published import PublishedRow, short_name
from promptcli.training.methods import find_method
from promptcli.training.methods.method import Method
from promptcli.training.methods.training_settings import TrainingSettings

if TYPE_CHECKING:
    from promptcli.training.training_loop import TrainedWeights


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
    from promptcli.training.training_loop import steps_of

    try:
        method, settings = _method(row, context)
        steps_of(settings, len(context.examples(_kind(method, row))))
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
    halves = "bfloat16" in str(choose_dtype("auto", str(backbone.device)))
    transfer = method.transfer_recipe(recipe)
    identity = {
        **identity_of(recipe, context),
        **({} if transfer is None else {"transfer": {**transfer.to_dict(), "backbone": None}}),
        "trained": {"method": method.name, "supervised": row.setting == "sup", **dataclasses.asdict(settings)},
        "precision": "bfloat16" if halves else "float32",
        "examples": examples.sha256,
        "development": development.sha256(),
    }

    def make() -> Encoder:
        """Return the encoder of the weights kept from a training of the same identity, else train and keep them."""
        kept = context.cache.get_tensors(identity)
        if kept is None:
            encoder, trained = _train(method, settings, examples, development, context, halves=halves)
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
        lambda: fit(last, sentences, backbone=make().backbone).encoder,
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
    halves: bool,
) -> "tuple[Encoder, TrainedWeights]":
    """Train on a backbone of its own, since training changes it."""
    from promptcli.training.processes import start_processes
    from promptcli.training.run import TrainingRun, train_encoder
    from promptcli.training.training_loop import TrainingCallbacks, steps_of

    backbone = context.open_backbone()
    run = TrainingRun(method, settings, examples, "corpus", development, ()).on(backbone, settings)
    with (
        tempfile.TemporaryDirectory() as folder,
        working(f"train {method.name}, seed {settings.seed}", steps_of(settings, len(examples))) as advance,
    ):
        return train_encoder(
            run,
            backbone,
            folder=Path(folder),
            processes=start_processes(str(backbone.device), halves=halves, trackers=[], folder=Path(folder)),
            callbacks=TrainingCallbacks(step=lambda step, loss: advance(1)),
        )
