"""`compile`: passes of training go through torch.compile, and change neither losses nor names.

Compiling takes seconds a method. Of one method the graph alone is made here, which finds what
breaks it; ``PROMPTCLI_TEST_COMPILER=inductor`` (or another backend of torch.compile) compiles all.
"""

import os
import pickle

import pytest
import torch

import promptcli as pc
from promptcli.backbones import backbone as backbone_module
from promptcli.backbones.states import Batch, Needs
from promptcli.recipe import Recipe
from promptcli.training import step as step_module
from tests import training_steps
from tests.comparing import refusal
from tests.tiny import SENTENCES
from tests.training_steps import CERTAIN, assert_equal, gradients, learner_of

COMPILER = os.environ.get("PROMPTCLI_TEST_COMPILER", "")


class Counted:
    """Stands in for torch.compile: counts the passes that go through a model that it was given."""

    def __init__(self, error=None):
        self.passes = 0
        self.options = None
        self.error = error

    def __call__(self, model, **options):
        self.options = options

        def run(**given):
            self.passes += 1
            if self.error is not None:
                raise self.error
            return model(**given)

        return run


@pytest.fixture
def counted(monkeypatch):
    counted = Counted()
    monkeypatch.setattr(torch, "compile", counted)
    return counted


def pickled(backbone):
    return pickle.loads(pickle.dumps(backbone))


def options_of(name):
    certain = {"dropout": 0.0, **CERTAIN.get(name, {})}
    return certain | ({"lora_dropout": 0.0} if training_steps.family_for(name) == "llama" else {})


def compiles_with(monkeypatch, **options):
    monkeypatch.setitem(backbone_module.COMPILE_OPTIONS, "cpu", {"fullgraph": True, **options})
    torch.compiler.reset()


def test_one_graph_has_the_gradients_and_torchs_own_dropout(bert_folder, monkeypatch):
    compiles_with(monkeypatch, backend="eager", dynamic=True)
    folder, options = bert_folder, {"dropout": 0.0}
    plain = gradients(learner_of("simcse", folder, **options))
    assert_equal(plain, gradients(learner_of("simcse", folder, compile=True, **options)))
    # the quick dropout draws by numpy, which would break the graph
    assert gradients(learner_of("simcse", folder, compile=True))[0] != plain[0]


@pytest.mark.skipif(not COMPILER, reason="the compiler: PROMPTCLI_TEST_COMPILER names no backend")
@pytest.mark.parametrize(("name", "supervised"), training_steps.FORMS)
def test_every_method_compiles_to_the_same_gradients(name, supervised, tiny_folder, monkeypatch):
    compiles_with(monkeypatch, backend=COMPILER, dynamic=True)
    models = {}
    if name in ("distill", "rankcse"):
        # far from the student: of a difference of equal vectors, rounding alone would be compared
        teacher = Recipe(backbone=str(tiny_folder("bert")), pooling="layer-0/avg")
        models = {"teacher": pc.load(teacher)}

    def found(**changes):
        family = training_steps.family_for(name)
        learner = learner_of(
            name, tiny_folder(family), supervised, models=models, **options_of(name), **changes
        )
        return gradients(learner, columns=training_steps.columns_for(name, supervised))

    assert_equal(found(), found(compile=True))


@pytest.mark.skipif(not COMPILER, reason="the compiler: PROMPTCLI_TEST_COMPILER names no backend")
def test_a_step_is_repeated_with_the_dropout_it_had(bert_folder, monkeypatch):
    compiles_with(monkeypatch, backend=COMPILER, dynamic=True)
    learner = learner_of("simcse", bert_folder, compile=True)
    first, other, again = (gradients(learner, number)[0] for number in (0, 1, 0))
    assert first == again != other


@pytest.mark.parametrize("name", ["simcse", "dcpcse", "optiprompt"])
def test_passes_of_training_are_compiled_and_scores_are_not(name, bert_folder, counted):
    learner = learner_of(name, bert_folder, compile=True, dropout=0.0)
    compiled = gradients(learner)
    passes = counted.passes
    assert passes > 0 and counted.options == {"dynamic": True}
    learner.eval()
    learner.as_encoder(for_development=True).encode(SENTENCES)
    assert counted.passes == passes
    plain = learner_of(name, bert_folder, dropout=0.0)
    assert_equal(compiled, gradients(plain))
    assert learner.tensors().keys() == plain.tensors().keys()


def test_a_pass_whose_embeddings_are_changed_stays_plain(bert_folder, counted):
    augmented = {"augment_first": "token-cutoff", "augment_second": "feature-cutoff"}
    gradients(learner_of("consert", bert_folder, compile=True, **augmented))
    assert counted.passes == 0


@pytest.mark.parametrize("copy", [lambda backbone: backbone.to("cpu"), pickled])
def test_a_copy_of_a_compiled_backbone_is_plain(copy, bert_folder, counted):
    copied = copy(learner_of("simcse", bert_folder, compile=True).backbone)
    copied.model.train()
    copied.run(Batch(torch.tensor([[2, 9, 3]]), torch.tensor([3])), Needs(layers=frozenset({1})))
    assert counted.passes == 0


def test_gradient_caching_ends_it(bert_folder, counted, monkeypatch):
    with refusal("compile: excludes gradient_caching"):
        learner_of("simcse", bert_folder, compile=True, gradient_caching=True)
    learner = learner_of("simcse", bert_folder, compile=True, chunk_tokens=256)
    whole = step_module.TrainingStep._gradients_once

    def full(step, *given):
        if not step.encoder.caching:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return whole(step, *given)

    monkeypatch.setattr(step_module.TrainingStep, "_gradients_once", full)
    gradients(learner)
    assert learner.caching and counted.passes == 0


def test_what_cannot_be_compiled_is_one_line(bert_folder, monkeypatch):
    failure = type("InductorError", (RuntimeError,), {"__module__": "torch._inductor.exc"})
    error = failure("InvalidCxxCompiler: No working C++ compiler found in ['g++']\n\nSet VERBOSE=1")
    monkeypatch.setattr(torch, "compile", Counted(error))
    learner = learner_of("simcse", bert_folder, compile=True)
    with refusal(r"^compile: .* C\+\+ compiler found in \['g\+\+'\]\); leave it"):
        gradients(learner)
