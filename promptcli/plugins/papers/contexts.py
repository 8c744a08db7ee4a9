"""A backbone, and the data that tables are measured with on it."""

import contextlib
import functools
import hashlib
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, cast

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from promptcli.backbones.backbone import Backbone
from promptcli.backbones.model_folder import is_word_file
from promptcli.backbones.published_backbones import published_name
from promptcli.data import senteval, training_data
from promptcli.data.layouts import LAYOUTS
from promptcli.data.tasks import STSTask, load_graded_tasks
from promptcli.encoder.encoder import TorchEncoder, build_encoder
from promptcli.errors import NotFoundError, PromptcliError, UsageError
from promptcli.evaluation.scores import Score
from promptcli.grammar import parse_ditto
from promptcli.models import loading
from promptcli.notes import note
from promptcli.plugins.papers.published import Facts, Texts, short_name
from promptcli.recipe import ModelChoice, Recipe
from promptcli.settings import home_folder
from promptcli.storage.cache import Cache, digest
from promptcli.storage.files import atomic_path
from promptcli.storage.runs import RunFolder
from promptcli.storage.tensors import save_tensors

Loaded = TypeVar("Loaded")

PROTOCOL = "senteval"  #: the papers' pairs and text

#: Field of ``Texts`` -> the layouts that its file may have.
EXAMPLES: dict[str, tuple[tuple[str, ...], ...]] = {
    "corpus": (LAYOUTS["sentences"],),
    "triplets": (LAYOUTS["triplets"], LAYOUTS["pairs"]),
    "labelled": (LAYOUTS["labelled"],),
    "definitions": (LAYOUTS["definitions"],),
}


@dataclass(frozen=True)
class MeasureData:
    """The data that a measure is taken on."""

    #: data set -> its hash, size and treatment; JSON-ready
    facts: dict[str, Facts] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)  #: missing data set -> reason
    content: Any = None  #: sentences or tasks, as the measure needs them


class FiguresCache(Cache):
    """A cache of measured values, and of the tensors of trained rows."""

    def __init__(self, folder: Path | None = None, *, fresh: bool = False) -> None:
        super().__init__(folder or home_folder() / "cache" / "figures", fresh=fresh)

    def get_tensors(self, key: Mapping[str, Any]) -> dict[str, Tensor] | None:
        path = self._path(key, ".safetensors")
        if not self.is_hidden(path.name):
            with contextlib.suppress(OSError, SafetensorError):
                return load_file(path)
        return None

    def put_tensors(self, key: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        path = self._path(key, ".safetensors")
        with atomic_path(path) as temporary:
            save_tensors(tensors, temporary)
        self.renew(path.name)

    @contextlib.contextmanager
    def training_folder(self, key: Mapping[str, Any]) -> Iterator[Path]:
        """Yield the folder of a training run, with the state of an earlier run that was stopped.

        The folder is deleted when the block succeeds. It is refused while another process uses it.
        """
        run = RunFolder(self._path(key, ".run"))
        with run.claim("the same work", "leave it out"):
            if self.is_hidden(run.folder.name):
                run.discard()
            run.folder.mkdir(exist_ok=True)
            self.renew(run.folder.name)
            yield run.folder
            run.discard()

    def _path(self, key: Mapping[str, Any], suffix: str) -> Path:
        return self.folder / f"{digest(key)}{suffix}"


@dataclass(eq=False)
class MeasurementContext:
    """A backbone, the data that it is measured on, and the options of the run."""

    backbone_name: str  #: a shipped name, a folder, a hub id, or a file of word vectors
    open_backbone: Callable[[], Backbone]  #: loads a new copy, since training changes a backbone
    cache: FiguresCache = field(default_factory=FiguresCache)
    data_dir: Path | None = None  #: SentEval folder of the tasks; None: tasks come from the hub
    texts: Texts = field(default_factory=Texts)
    seeds: Sequence[int] = ()  #: of the runs of each trained row; empty: nothing is trained
    head: str | None = None  #: head of Ditto's rows; None: the backbone's published head
    pictures: Path | None = None  #: folder of drawn figures; None: nothing can be drawn
    plot: Path | None = None  #: further file into which the only table is drawn
    paper: bool = False  #: whether trained rows have the settings published for their backbones
    changes: Mapping[str, Any] = field(default_factory=dict)  #: changed settings of trained rows
    #: the scores of a system on tasks, by the system's id and the names of the tasks
    scores: dict[tuple[str, ...], Sequence[Score]] = field(default_factory=dict, init=False)
    _loaded: dict[Hashable, Any] = field(default_factory=dict, init=False)

    @functools.cached_property
    def backbone(self) -> Backbone:
        return self.open_backbone()

    @functools.cached_property
    def published(self) -> str | None:
        """The published or shipped backbone that equals this one, see ``published_name``."""
        try:
            return published_name(self.backbone)
        except PromptcliError:  # it cannot be opened, so nothing is measured: its name will do
            return short_name(self.backbone_name)

    @property
    def name(self) -> str:
        """The name in results, without folders.

        Word vectors that are not the papers' are named by their file.
        """
        if is_word_file(self.backbone_name) and self.published is None:
            return Path(self.backbone_name.partition(":")[2]).name
        return short_name(self.backbone_name)

    def is_on(self, backbone: str) -> bool:
        """Return whether this is a backbone of the papers' tables."""
        return self.published == short_name(backbone)

    @functools.cached_property
    def backbone_facts(self) -> Facts:
        """The backbone's name, origin and hashes, without its folder; JSON-ready."""
        provenance = self.backbone.provenance
        hashes = f"{provenance.weights_sha256} {provenance.tokenizer_sha256}"
        facts: Facts = {
            "name": self.name,
            "published": self.published,
            "id": hashlib.sha256(hashes.encode()).hexdigest()[:8],
            "family": provenance.family,
            "weights_sha256": provenance.weights_sha256,
            "tokenizer_sha256": provenance.tokenizer_sha256,
            "dtype": str(self.backbone.dtype).removeprefix("torch."),
        }
        if self.backbone.extension is not None:
            facts["extension"] = vars(self.backbone.extension)
        return facts

    @property
    def backbone_identity(self) -> Facts:
        """The facts of the backbone that determine scores."""
        names = ("weights_sha256", "tokenizer_sha256", "dtype", "extension")
        return {name: self.backbone_facts[name] for name in names if name in self.backbone_facts}

    def once(self, key: Hashable, load: Callable[[], Loaded]) -> Loaded:
        """Return the data of a key, which are loaded the first time."""
        if key not in self._loaded:
            self._loaded[key] = load()
        return cast(Loaded, self._loaded[key])

    @functools.cached_property
    def sentences(self) -> list[str]:
        with senteval.tasks_from(self.data_dir):
            return training_data.fitting_sentences(self.texts.corpus)

    def examples(self, kind: str) -> training_data.TrainingExamples:
        """Return the training data of a kind in ``EXAMPLES``."""
        source = getattr(self.texts, kind)
        layouts = EXAMPLES[kind]
        if source is None:
            columns = ", ".join(layouts[0])
            raise UsageError(f"rows trained on {kind} need a file with columns {columns}")
        return self.once(
            ("examples", kind), lambda: training_data.training_examples(source, layouts=layouts)
        )

    @functools.cached_property
    def corpus_facts(self) -> Facts:
        """The identity of the corpus without its folder, JSON-ready."""
        return {
            "name": Path(self.texts.corpus).name,
            "sentences": len(self.sentences),
            "sha256": hashlib.sha256("\n".join(self.sentences).encode()).hexdigest(),
        }

    def text_facts(self, kind: str) -> Facts:
        """Return the identity of the data of a kind in ``EXAMPLES`` without their folder,
        JSON-ready.
        """
        if kind == "corpus":
            return self.corpus_facts
        examples = self.examples(kind)
        name = Path(getattr(self.texts, kind)).name
        return {"name": name, "examples": len(examples), "sha256": examples.sha256}

    def tasks(self, names: Sequence[str]) -> MeasureData:
        """Return STS tasks; ``content`` is the list of the tasks that have data."""

        def load() -> MeasureData:
            loaded = load_graded_tasks(self.data_dir, names, PROTOCOL)
            note_missing(loaded.missing)
            facts = {
                task.label: {
                    "pairs": len(task.pairs()),
                    "expected_pairs": task.expected_pairs,
                    "text": task.text,
                    "sha256": task.sha256(),
                }
                for task in loaded.tasks
            }
            return MeasureData(facts, loaded.missing, loaded.tasks)

        return self.once(tuple(names), load)

    def development(self) -> STSTask:
        """Return the development pairs, which choose the trained weights and the heads."""
        loaded = self.tasks(["STS-B:dev"])
        if loaded.missing:
            raise NotFoundError("no data: STS-B:dev")
        task: STSTask = loaded.content[0]
        return task

    def analyze(self, name: str, on: str | Sequence[str] | None = None, **settings: Any) -> Any:
        """Return the result of an analysis that does not depend on the recipe."""
        recipe = Recipe(backbone=self.backbone.name)
        [result] = analyze_each(name, [TorchEncoder(recipe, self.backbone, {})], on, **settings)
        return result


def backbone_stem(backbone: Mapping[str, Any]) -> str:
    """Return a backbone's name in the names of files.

    It has a hash unless the backbone is published or shipped: others may share a name.
    """
    name = str(backbone["name"])
    if backbone["published"] == name:
        return name
    return f"{name}-{backbone['id']}"


def note_missing(missing: Mapping[str, str]) -> None:
    """Note which data sets are missing, and why."""
    for label, reason in missing.items():
        note(f"no data of {label}: {reason}")


def existing_folder(data_dir: str | Path | None) -> Path | None:
    """Return a SentEval folder as a path; refuse a missing one."""
    if data_dir is None:
        return None
    folder = Path(data_dir)
    if not folder.is_dir():
        raise NotFoundError(f"{folder}: no such folder; give a SentEval `downstream` folder")
    return folder


def open_backbone(choice: ModelChoice) -> Backbone:
    """Return a new copy of the chosen backbone."""
    # every backbone has static states
    recipe = Recipe(backbone=choice.model or choice.backbone, pooling="static/avg")
    return build_encoder(recipe, device=choice.device, dtype=choice.dtype or "stored").backbone


def analyze_each(
    name: str,
    encoders: Sequence[TorchEncoder],
    on: str | Sequence[str] | None,
    **settings: Any,
) -> list[Any]:
    """Return the results of an analysis, one for each encoder."""
    from promptcli import analyze

    results = analyze(name, encoders, on, **settings)
    assert isinstance(results, dict)
    return list(results.values())


def head_of(text: str, backbone: str) -> str:
    """Return a head of a backbone; the text is LAYER-HEAD or the name of a model with a head."""
    ditto = parse_ditto(text) or parse_ditto(f"ditto:{text}")
    if ditto is None:
        recipe = loading.open_registry().load_manifest(text).recipe
        ditto = parse_ditto(recipe.pooling)
        if ditto is None or recipe.backbone != backbone:
            raise UsageError(
                f"model {text!r} reads {recipe.pooling} of {recipe.backbone}, no head of"
                f" {backbone}; `promptcli ditto-search --name NAME` saves one",
                parameter="head",
            )
    return str(ditto.head)
