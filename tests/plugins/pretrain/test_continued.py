"""``promptcli pretrain --from`` a checkpoint of any masked family: its loss, its head, a run that
is stopped, and what is refused.
"""

import json
import shutil
from unittest.mock import Mock

import numpy as np
import pytest
import torch
import transformers as hf
from safetensors.torch import load_file

import promptcli as pc
from promptcli.backbones.by_name import load_backbone
from promptcli.backbones.language_models import MaskedCheckpoint
from promptcli.plugins.pretrain import pretraining
from promptcli.plugins.pretrain.batches import batch_of_step, steps
from promptcli.plugins.pretrain.corpus import Vocabulary, make_corpus
from promptcli.plugins.pretrain.pretraining import Pretrainer
from promptcli.plugins.pretrain.start import OthersModel
from tests.comparing import gap, refused
from tests.tiny import FAMILIES, SENTENCES, save_tiny

SMALL = ["--batch-tokens", "128", "--threads", "1", "--tokens", "600"]


@pytest.fixture
def text(tmp_path):
    (tmp_path / "text.txt").write_text("\n".join(SENTENCES * 4) + "\n", encoding="utf-8")
    return tmp_path / "text.txt"


def padded_batch(checkpoint, text, folder):
    """Return the first masked batch of a run that has padding."""
    vocabulary = Vocabulary.of(checkpoint)
    plan = OthersModel(checkpoint).plan({"tokens": 2000, "batch_tokens": 256})
    folder.mkdir()
    files = [text]
    corpus = make_corpus(folder, files, files, vocabulary)
    for step in steps(plan, corpus):
        batch = batch_of_step(step, plan, corpus)
        if not batch.real.all():
            return batch, step, corpus
    raise AssertionError("no batch is padded")


@pytest.mark.parametrize("family", FAMILIES)
def test_the_loss_and_its_gradient_are_those_of_transformers(family, tiny_folder, text, tmp_path):
    checkpoint = MaskedCheckpoint.open(str(tiny_folder(family)))
    batch, step, corpus = padded_batch(checkpoint, text, tmp_path / "work")
    model = checkpoint.model("cpu", torch.float32)
    model._stored.eval()  # without dropout, which is random
    loss, right = model.loss(batch.on("cpu"), dropout=0.0)
    loss.backward()

    tokenizer = hf.AutoTokenizer.from_pretrained(tiny_folder(family))
    theirs = hf.AutoModelForMaskedLM.from_pretrained(tiny_folder(family), dtype=torch.float32)
    theirs.eval()
    labels = torch.full(batch.ids.shape, -100)
    labels.view(-1)[torch.from_numpy(batch.places)] = torch.from_numpy(batch.gold)
    answer = theirs(
        input_ids=torch.from_numpy(batch.ids),
        attention_mask=torch.from_numpy(batch.real).long(),
        labels=labels,
    )
    answer.loss.backward()
    assert float(loss.detach()) == pytest.approx(float(answer.loss.detach()), rel=1e-5)
    guesses = answer.logits.argmax(dim=-1)
    assert int(right) == int((guesses == labels)[labels != -100].sum())
    wanted = dict(theirs.named_parameters())
    assert wanted.keys() == model.parameters.keys()
    for name, parameter in model.parameters.items():
        if wanted[name].grad is None:
            assert parameter.grad is None or not parameter.grad.any(), name
        else:
            assert torch.allclose(parameter.grad, wanted[name].grad, atol=1e-5), name

    restored = batch.ids.copy()
    restored.ravel()[batch.places] = batch.gold
    first, *_, last = tokenizer(SENTENCES[0])["input_ids"]
    for row, real, (start, end) in zip(restored, batch.real, step.spans, strict=True):
        line = [first, *corpus.tokens[start:end].tolist(), last]
        assert row[real].tolist() == line and (row[~real] == tokenizer.pad_token_id).all()
    assert (batch.ids.ravel()[batch.places] == tokenizer.mask_token_id).any()
    special = set(tokenizer.all_special_ids)
    assert not special & {*batch.gold.tolist()}
    ids = tokenizer(SENTENCES[0], add_special_tokens=False)["input_ids"]
    assert corpus.tokens[: len(ids)].tolist() == ids


@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_saved_is_a_backbone_with_its_own_trained_head(
    family, tiny_folder, text, tmp_path, run
):
    words = ["pretrain", text, "-o", tmp_path / "new", "--from", tiny_folder(family), *SMALL]
    ran = run(*words, "--json")
    assert ran.code == 0, ran.err
    before, after = load_backbone(str(tiny_folder(family))), load_backbone(str(tmp_path / "new"))
    assert after.provenance.family == before.provenance.family
    assert after.tokenizer.sha256 == before.tokenizer.sha256
    for one, other in (
        (before.word_embeddings, after.word_embeddings),
        (next(before.head.transform.parameters()), next(after.head.transform.parameters())),
        (before.head.output_embeddings, after.head.output_embeddings),
    ):
        assert one.shape == other.shape and not torch.equal(one, other)
        assert gap(one, other) < 0.01, "it goes on from the weights"
    assert (
        json.loads((tmp_path / "new" / "config.json").read_text())["model_type"]
        == json.loads((tiny_folder(family) / "config.json").read_text())["model_type"]
    )
    vectors = pc.load("last-avg", backbone=str(tmp_path / "new")).encode(SENTENCES[:2])
    assert np.isfinite(vectors).all()
    settings = json.loads((tmp_path / "new" / "work" / "run.json").read_text())["identity"]
    told = [settings[name] for name in ("learning_rate", "masking", "warmup")]
    assert told == [1e-4, 0.15, 0.06]
    assert settings["begun_from"]


def test_a_stopped_run_goes_on_to_the_same_numbers(tiny_folder, text, tmp_path, run, monkeypatch):
    monkeypatch.setattr(pretraining, "_SECONDS_TO_SAVE", 0.0)
    monkeypatch.setattr(pretraining, "_LOG_EVERY", 2)
    words = ["pretrain", text, *SMALL, "--from", tiny_folder("roberta")]
    with monkeypatch.context() as patched:
        saves = Mock(side_effect=[None, KeyboardInterrupt])
        save = Pretrainer.save
        patched.setattr(Pretrainer, "save", lambda *given: (save(*given), saves()))
        ran = run(*words, "-o", tmp_path / "stopped")
    assert ran.code != 0 and not (tmp_path / "stopped" / "model.safetensors").exists()
    assert run(*words, "-o", tmp_path / "stopped", "--resume").code == 0
    assert run(*words, "-o", tmp_path / "whole").code == 0
    one, other = (load_file(tmp_path / name / "model.safetensors") for name in ("stopped", "whole"))
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_at_a_learning_rate_of_0_the_model_is_the_one_begun_from(tiny_folder, text, tmp_path, run):
    words = ["--from", tiny_folder("xlm-roberta"), *SMALL, "--learning-rate", "0"]
    assert run("pretrain", text, "-o", tmp_path / "new", *words).code == 0
    before = load_file(tiny_folder("xlm-roberta") / "model.safetensors")
    after = load_file(tmp_path / "new" / "model.safetensors")
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--layers", "3"], "--layers: 3 does not go with"),
        (["--objective", "bag-of-words"], "--objective: bag-of-words does not go with"),
        (["--set", "dropout=0.2"], "--set dropout: 0.2 does not go with"),
        (["--batch-tokens", "30"], "--batch-tokens: 30"),
    ],
)
def test_settings_of_new_models_are_refused(options, message, bert_folder, text, tmp_path, run):
    words = ["pretrain", text, "-o", tmp_path / "new", "--from", bert_folder, *SMALL]
    refused(run(*words, *options, "-q"), 2, message)
    assert not (tmp_path / "new").exists()


def test_models_without_a_head_and_causal_ones_are_refused(tiny_folder, text, tmp_path, run):
    bare = save_tiny("bert", tmp_path / "bare", model_class=hf.BertModel)
    discriminator = save_tiny(
        "electra", tmp_path / "discriminator", model_class=hf.ElectraForPreTraining
    )
    for folder, code, reason in (
        (bare, 2, "has no masked-LM head"),
        (discriminator, 2, "has no masked-LM head"),
        (tiny_folder("llama"), 2, "is a causal model"),
        ("mini", 2, "is an encoder"),
        ("glove:vectors.txt", 2, "holds word vectors"),
    ):
        words = ["pretrain", text, "-o", tmp_path / "new", "--from", folder, *SMALL, "-q"]
        refused(run(*words), code, reason)
        assert not (tmp_path / "new").exists()


def test_a_vocabulary_that_looks_like_ours_but_keeps_case_is_the_checkpoints(
    bert_folder, text, tmp_path, run
):
    """Its tokenizer's files say otherwise than those that this command writes."""
    folder = tmp_path / "cased"
    shutil.copytree(bert_folder, folder)
    vocabulary = load_backbone(str(folder)).tokenizer_of_transformers().get_vocab()
    (folder / "vocab.txt").write_text(
        "".join(f"{item}\n" for item in sorted(vocabulary, key=vocabulary.get)), encoding="utf-8"
    )
    assert run("pretrain", text, "-o", tmp_path / "new", "--from", folder, *SMALL).code == 0
    assert (tmp_path / "new" / "tokenizer.json").is_file()
