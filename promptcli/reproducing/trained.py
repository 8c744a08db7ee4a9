"""Trained rows: a method of the papers trained now, on the corpus, one run; its numbers are kept in memory only."""

import dataclasses
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from promptcli.backbones.devices import choose_dtype
from promptcli.data.sts import STSTask
from promptcli.encoder import Encoder
from promptcli.errors import NotFoundError, PromptcliError
from promptcli.methods import find_method
from promptcli.methods.method import Method, Settings
from promptcli.reproducing.place import Place
from promptcli.reproducing.published import Row, short_name
from promptcli.reproducing.subject import Subject, identity_of

SEED = 42
#: What the best numbers of a run are chosen by, as in the papers.
_CHOSEN_BY = "STS-B:dev"


@dataclass(frozen=True)
class _Form:
    """What a row's argument means: a method, and what differs from its settings."""

    method: str
    changes: dict[str, Any] = field(default_factory=dict)


#: DCPCSE's rows are told apart by the masked-LM term whatever a backbone's own settings say (its table 2).
FORMS = {
    "simcse": _Form("simcse"),
    "promptbert": _Form("promptbert"),
    "promptbert-one-template": _Form("promptbert", {"two_templates": False, "denoising": False}),
    "promptbert-no-denoising": _Form("promptbert", {"denoising": False}),
    "optiprompt": _Form("optiprompt"),
    "scpcse": _Form("scpcse"),
    "dcpcse": _Form("dcpcse", {"mlm_weight": 0.0}),
    "dcpcse-mlm": _Form("dcpcse", {"mlm_weight": 0.1}),
    "dcpcse-length-1": _Form("dcpcse", {"mlm_weight": 0.0, "prefix_length": 1}),
}


def lacks_training(row: Row, place: Place) -> str | None:
    """Return why a row cannot be trained here, or None: examples of the other kind, too few, no development pairs."""
    from promptcli.training.loop import steps_of

    supervised = row.setting == "sup"
    try:
        if place.examples.supervised is not supervised:
            return f"training: needs a --corpus of {'pairs or triplets' if supervised else 'sentences'}"
        steps_of(_method(row, place)[1], len(place.examples))
        _development(place)
        _ = place.corpus_facts
    except PromptcliError as error:
        return f"training: {error}"
    return None


def trained_subject(row: Row, place: Place) -> Subject:
    """Return a row's subject; it is trained when its encoder is first asked for."""
    method, settings = _method(row, place)
    backbone, development = place.backbone, _development(place)
    recipe = method.recipe(backbone.name, backbone.provenance.family, settings)
    halves = "bfloat16" in str(choose_dtype("auto", str(backbone.device)))
    transfer = method.transfer_recipe(recipe)
    identity = {
        **identity_of(recipe, place),
        **({} if transfer is None else {"transfer": {**transfer.to_dict(), "backbone": None}}),
        "trained": {"method": method.name, "supervised": row.setting == "sup", **dataclasses.asdict(settings)},
        "precision": "bfloat16" if halves else "float32",
        "corpus": place.examples.sha256,
        "development": development.sha256(),
    }
    return Subject(
        row,
        identity,
        recipe,
        lambda: _train(method, settings, development, place, halves=halves),
        slow=True,
        transfer=transfer,
    )


def _method(row: Row, place: Place) -> tuple[Method, Settings]:
    form = FORMS[row.argument]
    method = find_method(form.method, supervised=row.setting == "sup")
    settings = method.settings(short_name(place.backbone_name), place.backbone.width)
    return method, settings.replace(seed=SEED, **form.changes)


def _development(place: Place) -> STSTask:
    found = place.tasks([_CHOSEN_BY])
    if found.missing:
        raise NotFoundError(f"no data: {_CHOSEN_BY}")
    task: STSTask = found.content[0]
    return task


def _train(method: Method, settings: Settings, development: STSTask, place: Place, *, halves: bool) -> Encoder:
    """Train on a backbone of its own, since training changes it."""
    from promptcli.training.loop import Told, steps_of
    from promptcli.training.processes import start_processes
    from promptcli.training.run import Run, train_encoder

    backbone, examples = place.new_backbone(), place.examples
    run = Run(method, settings, examples, "corpus", development, ())
    with (
        tempfile.TemporaryDirectory() as folder,
        place.working(f"train {method.name}", steps_of(settings, len(examples))) as advance,
    ):
        encoder, _ = train_encoder(
            run,
            backbone,
            folder=Path(folder),
            processes=start_processes(str(backbone.device), halves=halves, trackers=[], folder=Path(folder)),
            told=Told(step=lambda step, loss: advance(1)),
        )
    return encoder
