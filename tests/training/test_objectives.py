"""Objectives and methods as rows of tables: SBERT's classifier against a plain loop, a method made here and trained."""

from dataclasses import dataclass, replace

import pytest
import torch

import promptcli as pc
from promptcli.data.dialect import GRADED_PAIRS
from promptcli.data.dialect import SENTENCES as ALONE
from promptcli.data.sources import TrainingExamples
from promptcli.errors import UsageError
from promptcli.training import methods, objectives
from promptcli.training.methods.method import Method, Variant
from promptcli.training.methods.sbert import REGRESSION
from promptcli.training.methods.training_settings import TrainingSettings, setting
from promptcli.training.objectives.contrastive import contrastive_loss
from promptcli.training.objectives.objective import Objective
from promptcli.training.objectives.pairs import CLASSES, PairCosine
from tests.learning import learner_of, trainer_of
from tests.reference import losses
from tests.tiny import SENTENCES

LABELS = ["entailment", "contradiction", "neutral", "neutral"]
PAIRS = [SENTENCES[:4], SENTENCES[4:8], LABELS]


@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_sberts_loss_is_the_papers(family, tiny_folder):
    learner = learner_of(methods.find_method("sbert", supervised=True), tiny_folder(family), dropout=0.0, max_length=60)
    vectors, classifier = [learner.encoder().encode(texts) for texts in PAIRS[:2]], learner.objective.classifier
    rows = [[*first, *second, *abs(first - second)] for first, second in zip(*vectors, strict=True)]
    classes = [CLASSES[label] for label in LABELS]
    expected = losses.softmax_loss(rows, classifier.weight.tolist(), classifier.bias.tolist(), classes)
    assert float(trainer_of(learner).gradients(0, PAIRS)) == pytest.approx(expected, rel=1e-4)
    assert learner.encoder().recipe.pooling == "last/avg"
    gradients = {name: one.grad for name, one in learner.trainable().items() if one.grad is not None}
    assert gradients["objective.classifier.weight"].abs().max() > 0
    assert any(name.startswith("backbone.") for name in gradients)
    assert not [name for name in learner.tensors() if not name.startswith("backbone.")]  # the classifier is discarded


@dataclass(frozen=True)
class ShuffleSettings(TrainingSettings):
    """Settings of the method below."""

    share: float = setting(0.5, "share of the batch whose tokens are shuffled.", min=0, max=1)


class Shuffled(Objective):
    """A second view by shuffled positions (ConSERT's token shuffling), scored through a matrix of its own."""

    layouts = (ALONE,)

    def __init__(self, settings, encoder, generator):
        super().__init__(settings, encoder, generator)
        self.share = settings.share
        self.mixing = torch.nn.Parameter(torch.eye(encoder.backbone.width))

    def shuffle(self, batch):
        """Permute the position ids of the first rows of a pass."""
        count, length = batch.ids.shape
        order = torch.rand(count, length).argsort(1)
        kept = torch.arange(count).unsqueeze(1) >= self.share * count
        return replace(batch, positions=torch.where(kept, torch.arange(length), order))

    def views(self, encoder, sides, columns):
        """Return the plain and the shuffled view."""
        return encoder.hidden(sides) @ self.mixing, encoder.hidden(sides, self.shuffle)

    def loss(self, views, columns):
        """Return InfoNCE."""
        return contrastive_loss(*views)


SHUFFLED = Method(
    name="shuffled",
    source="this test",
    pooling="last/avg",
    learns=("backbone",),
    small=ShuffleSettings(batch_size=4, learning_rate=1e-3, eval_steps=2),
    paper={},
    variants={"*": Variant(head=None)},
    objective="shuffled",
)


@pytest.mark.usefixtures("few_demo_pairs")
def test_a_new_method_is_one_file_and_one_line(monkeypatch, tiny_folder):
    """As ``docs/extending.md`` has it: a row in each table, and the run, the entry and its encoder follow."""
    monkeypatch.setitem(methods.METHODS, "shuffled", (SHUFFLED, None))
    options = {"on": "demo:dev", "backbone": str(tiny_folder("bert")), "name": "mine", "share": 1.0}
    with pytest.raises(UsageError, match="unknown objective of method shuffled: 'shuffled'; valid: contrastive"):
        pc.train("shuffled", SENTENCES * 2, **options)
    monkeypatch.setitem(objectives.OBJECTIVES, "shuffled", Shuffled)
    trained = pc.train("shuffled", SENTENCES * 2, **options)
    entry = trained.entry
    assert entry.recipe.pooling == "last/avg"
    assert entry.provenance["trained"]["share"] == 1.0
    assert entry.scores[0]["value"] == pytest.approx(trained.scores["demo:dev"], abs=0.01)
    assert not [name for name in entry.tensors if name.startswith("objective.")]
    learner = learner_of(SHUFFLED, tiny_folder("bert"), dropout=0.0)
    first, second = learner([SENTENCES[:4]])
    assert int(((first - second).abs().amax(1) > 1e-4).sum()) == 2  # half of the batch is shuffled
    assert any("share" in item for item in methods.all_settings().__dataclass_fields__)


@pytest.mark.parametrize(
    ("scores", "top", "expected"),
    [
        (["0.0", "0.5", "1.0"], 0.0, [0, 0.5, 1]),
        (["80", "20", "0"], 0.0, [1, 0.25, 0]),
        (["4.0", "2.0", "0.0"], 5.0, [0.8, 0.4, 0]),
    ],
)
def test_graded_pairs_are_scaled_by_their_own_range(scores, top, expected):
    examples = TrainingExamples((["a"] * 3, ["b"] * 3, scores), "", layout=GRADED_PAIRS)
    chosen = PairCosine.choose(examples, replace(REGRESSION.small, top_score=top), None)
    assert [float(score) for score in chosen.columns[2]] == expected
    with pytest.raises(UsageError, match=r"is above `top_score`, 0\.5"):
        PairCosine.choose(examples, replace(REGRESSION.small, top_score=0.5), None)
