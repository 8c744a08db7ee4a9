"""Train an encoder by a published method: once, or by every combination of a sweep and every seed."""

import contextlib
import dataclasses
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from promptcli.backbones.backbone import Backbone
from promptcli.backbones.devices import choose_device, choose_dtype
from promptcli.backbones.loading import load_backbone
from promptcli.backbones.pretrained import family_and_width
from promptcli.data.sources import development_task, is_fetched, source_name, training_examples
from promptcli.data.tasks import STSTask
from promptcli.data.training_examples import TrainingData, TrainingExamples
from promptcli.encoder.encoder import Encoder, tuned_weights
from promptcli.errors import UsageError
from promptcli.evaluation.evaluator import kept_random_states
from promptcli.models.entries import Entry
from promptcli.models.loading import load, open_registry
from promptcli.models.registry import Registry
from promptcli.notes import note, obeys_offline, silent
from promptcli.notes import offline as without_network
from promptcli.settings import BARE, PAPER
from promptcli.storage.files import scratch_folder
from promptcli.storage.runs import RunFolder
from promptcli.training.methods import METHODS, find_method, forms
from promptcli.training.methods.method import Method, keeps_head
from promptcli.training.methods.training_settings import TrainingSettings
from promptcli.training.objectives import find_objective
from promptcli.training.processes import start_processes
from promptcli.training.runs import (
    Start,
    TrainingRun,
    TrialResult,
    TrialSummary,
    plan_trials,
    result_of,
    run_trials,
    summarise,
)
from promptcli.training.trainer import DevScore, source_shares

#: A value of a setting.
Setting = str | int | float | bool | tuple[str, ...]
_TRIPLETS = "nli_for_simcse"
_NAMED = 8  # words that a note names of those left out


@dataclass(frozen=True)
class Trained:
    """A trained encoder and how it came about."""

    entry: Entry  #: of the best run, as the registry keeps it
    runs: list[TrialResult]  #: one for every combination of a sweep and every seed, in order
    device: str
    is_main: bool  #: whether this is the process that speaks and writes, where several train together
    offline: bool = False  #: whether the encoder is loaded without the network
    made: bool = True  #: False: the model was there already, made by the same run

    @functools.cached_property
    def encoder(self) -> Encoder:
        """The encoder of the best run."""
        with without_network(self.offline):
            return Encoder.from_recipe(self.entry.recipe, tensors=self.entry.tensors, device=self.device)

    @property
    def best(self) -> TrialResult:
        """The run that is best on the development set; what the entry is of."""
        return max(self.runs, key=lambda run: run.chosen_by)

    @property
    def summary(self) -> list[TrialSummary]:
        """Mean and spread over the seeds of each combination, for each task."""
        return summarise(self.runs)

    @property
    def curve(self) -> list[DevScore]:
        """Development scores of the best run while it learned."""
        return [DevScore(**score) for score in self.entry.provenance["trained"]["curve"]]

    @property
    def untrained(self) -> dict[str, float]:
        """Spearman x 100 by task of the same recipe without anything learned, the development set first."""
        return self.best.untrained

    @property
    def scores(self) -> dict[str, float]:
        """Spearman x 100 by task of the encoder, the development set first."""
        return self.best.values

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as JSON-ready values: of the best run, of several runs each and their spread, too."""
        best = self.best
        document: dict[str, Any] = {name: getattr(best, name) for name in ("steps", "best_step", "seconds", "better")}
        document["scores"] = [
            {"task": task, "untrained": round(before, 2), "trained": round(best.values[task], 2)}
            for task, before in best.untrained.items()
        ]
        if best.nearest_words:
            document["nearest_words"] = [dataclasses.asdict(word) for word in best.nearest_words]
        if len(self.runs) > 1:
            document["runs"] = [dataclasses.asdict(row) for row in self.runs]
            document["summary"] = [dataclasses.asdict(summary) for summary in self.summary]
        return document


@kept_random_states()
@obeys_offline
def train(
    method: str,
    data: TrainingData | None = None,
    *,
    backbone: str | None = None,
    start: str | None = None,
    name: str | None = None,
    supervised: bool = False,
    paper: bool = False,
    on: STSTask | str | Path | None = None,
    tests: Sequence[str] = (),
    data_dir: str | Path | None = None,
    seeds: int | None = None,
    sweep: Mapping[str, Sequence[Setting]] | None = None,
    resume: bool = False,
    force: bool = False,
    trackers: Sequence[str] = (),
    device: str = "auto",
    dtype: str = "auto",
    offline: bool = False,
    **settings: Setting,
) -> Trained:
    """Train an encoder by a published method. Global random numbers stay as they are.

    Args:
        method: ``promptbert``, ``dcpcse``, ``simcse``, ``sbert``, ...: a name of ``training.methods.METHODS``.
        data: Sentences, pairs or triplets: ``demo`` (the default), a file, a list, a ``datasets.Dataset``, or a list of
            files, of pairs and triplets mixed say. Pairs and triplets make it the supervised method.
        backbone: What it starts from: a shipped name (``mini-bert`` where nothing is said), a folder, or a hub id.
        start: A model of the registry whose tuned backbone it starts from.
        name: Save it in the registry under this name; then a run that was killed can be resumed, and the same run again
            finds what it made.
        supervised: Refuse data without pairs or triplets, which are recognised by their columns.
        paper: The published settings, backbone and data, with the choices that made the printed figures.
        on: Graded pairs that the best numbers are chosen by: ``demo:dev``, with ``data_dir`` ``STS-B:dev``, or a file.
        tests: Tasks to score at the end; the test split of ``on`` where none is named.
        data_dir: SentEval folder of tasks other than ``demo``.
        seeds: Run that many seeds, 0, 1, ...
        sweep: Values to try by setting; every combination is run. The best by the development set is kept.
        resume: Resume the unfinished run of that name; it ends at the numbers of one that was never killed.
        force: Replace an entry of that name.
        trackers: Names of accelerate's trackers to report to.
        device: ``auto``, ``cpu``, ``cuda``, ...
        dtype: Of matrix products: ``auto`` (bfloat16 where the hardware computes in it), ``float32`` or ``bfloat16``;
            weights and optimiser are float32.
        offline: Never use the network.
        settings: The method's own, by the names of its options: ``steps=100``, ``learning_rate=1e-4``, ``seed=1``.

    Raises:
        UsageError: An unknown method or setting, data that cannot be learned from, or a name that is taken.
        NotFoundError: Data, a backbone or a model that is not there.
        PromptcliError: The loss is not a number, or memory does not hold one sentence.

    Example:
        >>> import promptcli as pc
        >>> pc.train("dcpcse", steps=100).encoder.encode(["A cat sleeps."]).shape  # doctest: +SKIP
        (1, 256)
    """
    registry, saved_as = open_registry(), name or method
    folder, assumed = None if data_dir is None else Path(data_dir), data is None and not paper
    form, backbone, data, on = _chosen(method, data, backbone, start, supervised, paper, on, folder)
    stored = _check_name(registry, name, method, force=force, resume=resume)
    begun = None if start is None else _read_start(start, method, backbone)
    examples = _read_examples(data, method, supervised, folder)
    form = find_method(method, supervised=examples.supervised)
    also: Sequence[STSTask | str | Path] = tests or [on.removesuffix(":dev") if isinstance(on, str) else on]
    development, *scored = (development_task(task, folder) for task in dict.fromkeys([on, *also]))
    where = choose_device(device)
    halves = choose_dtype(dtype, where) == torch.bfloat16
    runs = registry.run_folder(saved_as)
    with scratch_folder() if name is None else contextlib.nullcontext(runs.parent) as above:
        processes = start_processes(
            where, halves=halves, trackers=trackers, folder=runs.parents[1]
        )  # before the backbone: each process may have a device of its own

        def load() -> Backbone:
            return load_backbone(backbone, device=processes.device, dtype=torch.float32)

        with silent(not processes.is_main):
            first = load()
            changed = _in_force(form, backbone, first.width, paper, settings)
            models = _models(changed, sweep or {}, processes.device)
            run = TrainingRun(form, changed, examples, source_name(data), development, tuple(scored), begun, models)
            run = run.on(first, changed)
            if assumed:
                note(
                    f"assumed: {backbone}, {len(run.examples):,} demo sentences, chosen by {development.label}; the"
                    " papers' setting: `paper`"
                )
            _say(run)
            trials = plan_trials(sweep or {}, range(seeds) if seeds else [changed.seed])
            for trial in trials:
                run.check(trial, first)
            if stored is not None:
                if row := result_of(stored, run, trials, first, processes):
                    return Trained(stored, [row], processes.device, processes.is_main, offline, made=False)
                registry.check_free(saved_as)
            if trackers:
                processes.accelerator.init_trackers(saved_as, config=dataclasses.asdict(changed))
            fresh = [first]
            rows, entry = run_trials(
                run,
                trials,
                lambda: fresh.pop() if fresh else load(),
                name=saved_as,
                folder=above / saved_as,
                resume=resume,
                processes=processes,
                save=lambda best: None if name is None else registry.save(best, force=True),
            )
        processes.accelerator.end_training()
        entry = entry or registry.load(saved_as)
        if processes.is_main and name is not None:
            RunFolder(runs).remove()
        return Trained(entry, rows, processes.device, processes.is_main, offline)


def training_settings(
    method: str,
    data: TrainingData | None = None,
    *,
    backbone: str | None = None,
    start: str | None = None,
    supervised: bool = False,
    paper: bool = False,
    on: STSTask | str | Path | None = None,
    data_dir: str | Path | None = None,
    **settings: Setting,
) -> dict[str, object]:
    """Return what ``train`` would do with the same arguments, JSON-ready; no weights are read, nothing is fetched.

    Data that are given are read, unless they would be fetched: their columns say whether the method is supervised.

    Example:
        >>> import promptcli as pc
        >>> pc.training_settings("dcpcse", batch_size=32)["batch_size"]
        32
    """
    folder, given = None if data_dir is None else Path(data_dir), data
    form, backbone, data, on = _chosen(method, data, backbone, start, supervised, paper, on, folder)
    if given is not None and not is_fetched(given):
        form = find_method(method, supervised=_read_examples(given, method, supervised, folder).supervised)
    return _describe(form, _in_force(form, backbone, None, paper, settings), backbone, source_name(data), str(on))


def _chosen(
    method: str,
    data: TrainingData | None,
    backbone: str | None,
    start: str | None,
    supervised: bool,
    paper: bool,
    on: STSTask | str | Path | None,
    folder: Path | None,
) -> tuple[Method, str, TrainingData, STSTask | str | Path]:
    """Return the method, and the backbone, data and development set where they are named or else assumed."""
    form = find_method(method, supervised=supervised)
    backbone = backbone or (open_registry().card(start).recipe.backbone if start else _backbone_of(form, paper))
    if paper:
        _check_published(form, backbone)
    if data is None:
        data = (_TRIPLETS if supervised else PAPER.corpus) if paper else BARE.corpus
    return form, backbone, data, on or (PAPER.development if paper or folder is not None else BARE.development)


def _check_name(registry: Registry, name: str | None, method: str, *, force: bool, resume: bool) -> Entry | None:
    """Refuse a name that is taken; but return the entry where the run may be the one that made it."""
    if name is None:
        if resume:
            raise UsageError("which run is to be resumed? give its name, too")
        return None
    if not force and not resume and name in registry.names():
        entry = registry.load(name)
        if entry.provenance.get("trained", {}).get("method") == method:
            return entry
    registry.check_free(name, force=force or resume)
    return None


def _backbone_of(method: Method, paper: bool) -> str:
    """Return the backbone where none is named; the paper's is BERT-base where its settings are published for that."""
    if not paper:
        return BARE.backbone
    known = method.paper
    return PAPER.backbone if PAPER.backbone in known or not known else next(iter(known))


def _check_published(method: Method, backbone: str) -> None:
    if not method.paper:
        raise UsageError(f"`paper`: no settings of {method.name} are published; leave it out")
    if backbone not in method.paper:
        raise UsageError(
            f"`paper`: no settings of {method.name} are published for backbone {backbone!r}; there are for:"
            f" {', '.join(method.paper)}"
        )


def _in_force(
    method: Method, backbone: str, width: int | None, paper: bool, changes: Mapping[str, Setting]
) -> TrainingSettings:
    """Return the settings in force on a backbone of that width, which is looked up where it is None."""
    if paper:
        return method.changed(method.published(backbone), changes)
    if width is None:
        width = 0 if backbone in method.paper else family_and_width(backbone)[1]
    return method.changed(method.settings(backbone, width), changes)


def _describe(method: Method, settings: TrainingSettings, backbone: str, data: str, on: str) -> dict[str, object]:
    """Return what a run would do, JSON-ready; no weights are read, and the network is not used."""
    if backbone in method.paper:
        family = next(name for name in ("roberta", "bert", "opt", "llama") if name in backbone)
    else:
        family = family_and_width(backbone)[0]
    variant = method.variant(family)
    return {
        "method": method.name,
        "source": method.source,
        "backbone": backbone,
        "data": data,
        "chosen_by": on,
        "views": list(variant.prompts(settings)),
        "pooling": method.pooling_of(family, settings),
        "objective": method.objective,
        "learns": [*method.learns, *(["head"] if variant.head else [])],
        "head": variant.head and f"{variant.head}, {'kept' if keeps_head(settings) else 'while training only'}",
        "recipe": method.recipe(backbone, family, settings).to_dict(),
        **dataclasses.asdict(settings),
    }


def _read_start(start: str, method: str, backbone: str) -> Start:
    """Return the entry that a run starts from.

    Raises:
        NotFoundError: No such entry.
        UsageError: Its backbone was never tuned, is another one, or would not be tuned by the method.
    """
    tuning = list(dict.fromkeys(form.name for form in forms() if "backbone" in form.learns))
    if method not in tuning:
        raise UsageError(
            f"`start` starts from a trained backbone, which {method} leaves as it is; methods that tune it:"
            f" {', '.join(tuning)}"
        )
    entry = open_registry().load(start)
    own = entry.recipe.backbone
    if not tuned_weights(entry.tensors):
        raise UsageError(f"model {start!r} has no trained backbone to start from; give `backbone` {own}")
    if backbone != own:
        raise UsageError(f"model {start!r} is on backbone {own!r}, not {backbone!r}; leave out `backbone`")
    return Start(start, entry.tensors)


def _models(settings: TrainingSettings, sweep: Mapping[str, Sequence[Setting]], device: str) -> dict[str, Encoder]:
    """Return the encoders that settings name, by setting, e.g. a teacher.

    Raises:
        NotFoundError: No such model.
        UsageError: None is named, or several to choose from.
    """
    models = {}
    for item in dataclasses.fields(settings):
        if item.metadata.get("model"):
            named = getattr(settings, item.name)
            if not named or item.name in sweep:
                raise UsageError(f"which {item.name}? give `{item.name}` MODEL, one for the whole run")
            models[item.name] = load(named, device=device)
    return models


def _read_examples(data: TrainingData, method: str, supervised: bool, data_dir: Path | None) -> TrainingExamples:
    """Return the examples; their columns say whether the method is supervised."""
    objectives = [find_objective(form) for form in METHODS[method] if form is not None]
    layouts = tuple(dict.fromkeys(layout for objective in objectives for layout in objective.layouts))
    examples = training_examples(data, layouts=layouts, data_dir=data_dir)
    if supervised and not examples.supervised:
        wanted = find_objective(find_method(method, supervised=True)).layouts
        columns = " or ".join(", ".join(layout) for layout in wanted if layout)
        raise UsageError(
            f"`supervised` needs pairs or triplets, columns {columns}; {source_name(data)} has sentences only"
        )
    return examples


def _say(run: TrainingRun) -> None:
    """Say what was found in the data."""
    examples, settings = run.examples, run.settings
    hard = examples.columns[2] if len(examples.columns) > 2 else []
    for count, what in (
        (examples.blank, "rows with a blank sentence left out"),
        (examples.unlabelled, "rows without a label left out"),
        (hard.count(""), "pairs without a hard negative"),
        (examples.repeated, "rows repeat one before them; they stay"),
    ):
        if count:
            note(f"{run.source}: {count:,} {what}")
    if len(examples.sizes) > 1:
        shares = source_shares(examples.sizes, settings.data_temperature)
        mix = ", ".join(f"{share:,} of {size:,}" for share, size in zip(shares, examples.sizes, strict=True))
        note(f"{run.source}: rows an epoch: {mix}")
    if words := examples.untokenised:
        shown = ", ".join(words[:_NAMED]) + (", ..." if len(words) > _NAMED else "")
        note(f"{run.source}: {len(words):,} words that are no single token left out: {shown}")
