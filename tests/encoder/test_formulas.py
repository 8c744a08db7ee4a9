"""Every learning-free method against the plain loop of tests/reference, on BERT, RoBERTa, ELECTRA
and MPNet, to 1e-5.
"""

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer, BertModel, MPNetModel, RobertaModel

from promptcli.encoder.encoder import TorchEncoder, build_encoder
from promptcli.encoder.pooling.tfidf import TENSOR, fit_idf
from promptcli.encoder.transforms.principal_axes import Whitening
from promptcli.recipe import Recipe
from tests.comparing import gap, refusal
from tests.reference import plain
from tests.reference.causal import attention_outputs
from tests.tiny import SENTENCES, save_tiny

FAMILIES = ["bert", "roberta", "electra", "mpnet"]
SHIFTED = ["roberta", "mpnet"]  # positions start at 2
TOLERANCE = 1e-5


@pytest.fixture(scope="module", params=FAMILIES)
def family(request):
    return request.param


@pytest.fixture(scope="module")
def reference(family, plain_backbone):
    return plain_backbone(family)


@pytest.fixture(scope="module")
def encoder(family, tiny_backbone):
    def make(tensors=None, **changes) -> TorchEncoder:
        return build_encoder(Recipe(**changes), backbone=tiny_backbone(family), tensors=tensors)

    return make


def assert_rows(encoder, expected, sentences=SENTENCES):
    vectors = encoder.encode(sentences)
    golden = np.stack([row.numpy() for row in expected])
    largest = np.abs(
        golden
    ).max()  # sums of many tokens (TF-IDF) are large, and so is their rounding
    assert gap(vectors, golden) < TOLERANCE * max(1, largest)
    assert largest > 1e-2  # nothing but zeros would agree with anything


@pytest.mark.parametrize(
    "states", ["static", "mlm-head", "last", "first-last", "first-last:1", "layer-1"]
)
def test_an_average_is_the_plain_loops(states, encoder, reference):
    expected = []
    for sentence in SENTENCES:
        ids = reference.ids("[X]", sentence)
        hidden, _ = reference.states(ids)
        rows = {
            "static": reference.rows()[ids],
            "mlm-head": reference.decoder_rows()[ids],
            "last": hidden[-1],
            "first-last": torch.stack(plain.first_last(hidden)),
            "first-last:1": torch.stack(plain.first_last(hidden[1:])),
            "layer-1": hidden[1],
        }[states]
        expected.append(plain.average(rows))
    assert_rows(encoder(pooling=f"{states}/avg"), expected)


CONTENT = {"content-avg": plain.average, "content-max": plain.maximum}


@pytest.mark.parametrize("weights", CONTENT)
@pytest.mark.parametrize(
    "template",
    [
        "[X]",
        'This : "[X]" means [MASK] .',
        "[MASK] [X]",
        "Un[X]ly the [MASK]",
        "the ([X])",
        "the [X]",
    ],
)
def test_content_pooling_reads_the_tokens_of_the_sentence_alone(
    template, weights, encoder, reference
):
    made = encoder(prompt=template, pooling=f"first-last/{weights}", period=False)
    expected = []
    for sentence in SENTENCES:
        places = plain.content(reference.tokenizer, reference.filled(template, sentence), sentence)
        hidden, _ = reference.states(reference.ids(template, sentence))
        states = torch.stack(plain.first_last(hidden))[places]
        expected.append(CONTENT[weights](states))
    assert_rows(made, expected)
    one_by_one = np.concatenate([made.encode([sentence]) for sentence in SENTENCES[::4]])
    np.testing.assert_allclose(one_by_one, made.encode(SENTENCES)[::4], atol=2e-6)


@pytest.mark.parametrize("weights", CONTENT)
def test_content_pooling_reads_the_tokens_of_a_truncated_sentence_alone(
    weights, encoder, reference
):
    template = 'the "[X]" of [MASK]'
    made = encoder(prompt=template, pooling=f"last/{weights}", max_length=14, period=False)
    rows = made.inputs(SENTENCES).ids
    before = len(reference.ids(template.partition("[X]")[0].strip(), "")) - 1
    after = len(reference.ids(template.partition("[X]")[2], "")) - 1
    expected = []
    for row in rows:
        states = reference.states(row)[0][-1]
        expected.append(CONTENT[weights](states[before : len(row) - after]))
    long = [number for number, row in enumerate(rows) if len(row) == 14]
    vectors = made.encode(SENTENCES)
    assert len(long) > 3
    for number in long:
        np.testing.assert_allclose(vectors[number], expected[number].numpy(), atol=TOLERANCE)


def test_a_sentence_without_tokens_is_read_at_all_of_its_input(encoder):
    for prompt in ("[X]", "the [X] of"):
        for weights in ("avg", "max"):
            content, plain_one = (
                encoder(prompt=prompt, pooling=f"last/{name}").encode(["", SENTENCES[0]])
                for name in (f"content-{weights}", weights)
            )
            assert np.array_equal(content[0], plain_one[0])
            assert not np.allclose(content[1], plain_one[1])


def test_cls_is_the_first_state(encoder, reference):
    expected = [
        reference.states(reference.ids("[X]", sentence))[0][-1][0] for sentence in SENTENCES
    ]
    assert_rows(encoder(pooling="last/cls"), expected)


@pytest.mark.parametrize("head", ["1-1", "1-4", "2-3"])
@pytest.mark.parametrize("states", ["static", "last", "first-last"])
def test_ditto_weighs_by_the_diagonal_of_a_head(states, head, encoder, reference):
    layer, number = (int(part) for part in head.split("-"))
    expected = []
    for sentence in SENTENCES:
        ids = reference.ids("[X]", sentence)
        hidden, attentions = reference.states(ids)
        rows = {
            "static": reference.rows()[ids],
            "last": hidden[-1],
            "first-last": plain.first_last(hidden),
        }[states]
        expected.append(plain.ditto(rows, attentions[layer - 1], number - 1))
    assert_rows(encoder(pooling=f"{states}/ditto:{head}"), expected)


@pytest.mark.parametrize("alpha", [0.5, 1.0, 2.5, 40.0])
@pytest.mark.parametrize("head", [None, "2-3"])
def test_slot_attention_weighs_by_the_attention_of_the_mask(alpha, head, encoder, reference, notes):
    template = 'This : "[X]" means [MASK] .'
    expected = []
    for sentence in SENTENCES:
        ids = reference.ids(template, sentence)
        hidden, attentions = reference.states(ids)
        number = None
        if head is not None:
            layer, number = (int(part) - 1 for part in head.split("-"))
            attentions = attentions[layer : layer + 1]
        slot = ids.index(reference.tokenizer.mask_token_id)
        expected.append(plain.slot_attention(hidden[1], attentions, slot, alpha, number))
    place = "" if head is None else f":{head}"
    pooling = f"layer-1/slot-attention{place};{alpha:g}"
    made = encoder(prompt=template, pooling=pooling, period=False)
    assert made.recipe.pooling == pooling
    assert_rows(made, expected)
    told = f"{len(set(SENTENCES))} sentences without a token above 40 / n of the slot's attention"
    assert (told in notes.text) is (alpha == 40)


def test_mask_is_the_state_at_the_mask(encoder, reference, family):
    template = plain.TEMPLATES[family]
    expected = [reference.mask_state(template, plain.period(sentence)) for sentence in SENTENCES]
    assert_rows(encoder(prompt=template, pooling="last/mask"), expected)
    expected = [reference.mask_state(template, sentence) for sentence in SENTENCES]
    assert_rows(encoder(prompt=template, pooling="last/mask", period=False), expected)


@pytest.mark.parametrize("family", [*FAMILIES, "modernbert", "distilbert"], indirect=True)
@pytest.mark.parametrize(
    ("pooling", "layers"), [("attention/mask", slice(2)), ("attention:2-2/avg", slice(1, 2))]
)
def test_attention_states_are_the_blocks_outputs(pooling, layers, family, encoder, reference):
    template, mask = "[X] means [MASK] .", reference.tokenizer.mask_token_id
    expected = []
    for sentence in SENTENCES:
        ids = reference.ids(template, sentence)
        outputs = attention_outputs(reference, ids)[layers].sum(0)
        expected.append(outputs[ids.index(mask)] if pooling.endswith("mask") else outputs.mean(0))
    made = encoder(prompt=template, pooling=pooling, period=False)
    assert made.backbone.n_layers == 2
    assert_rows(made, expected)


@pytest.mark.parametrize("option", ["hidden", "hidden:code"])
def test_denoising_subtracts_the_state_of_the_template_alone(option, encoder, reference, family):
    template = plain.TEMPLATES[family]
    offset = 2 if family in SHIFTED and option == "hidden" else 0
    texts = list(map(plain.period, SENTENCES))
    expected = [
        reference.mask_state(template, text) - reference.mask_bias(template, text, offset)
        for text in texts
    ]
    assert_rows(encoder(prompt=template, pooling="last/mask", denoise=option), expected)


@pytest.mark.parametrize("place", ["none", "hidden", "head", "logits"])
def test_topk_tokens_mixes_the_likeliest_word_embeddings(place, encoder, reference, family):
    template, k = plain.TEMPLATES[family], 7
    rows = reference.rows()
    expected = []
    for sentence in map(plain.period, SENTENCES):
        h = reference.mask_state(template, sentence)
        bias = reference.mask_bias(template, sentence, 2 if family in SHIFTED else 0)
        logits = reference.denoised_logits(h, bias, place)
        expected.append(plain.topk(logits, rows, k))
    made = encoder(
        prompt=template, pooling="last/mask", transforms=(f"topk-tokens:{k}",), denoise=place
    )
    assert_rows(made, expected)


def test_tfidf_weighs_tokens_by_their_rarity(encoder, reference):
    documents = [reference.ids("[X]", sentence) for sentence in SENTENCES]
    idf = fit_idf(documents, len(reference.rows()))
    expected = []
    for ids in documents:
        rows = plain.first_last(reference.states(ids)[0])
        expected.append(plain.tfidf(ids, rows, documents))
    assert_rows(encoder({TENSOR: idf}, pooling="first-last/tfidf"), expected)
    assert idf[documents[0][0]] == 0 and idf[documents[0][-1]] == 0  # the specials


@pytest.mark.parametrize("k", [None, 3])
def test_whitening_gives_uncorrelated_columns_of_variance_1(k, encoder, reference):
    several = SENTENCES + [
        f"{sentence} {other}" for sentence in SENTENCES for other in SENTENCES[:3]
    ]
    states = [reference.states(reference.ids("[X]", sentence))[0] for sentence in several]
    vectors = torch.stack(
        [plain.average(torch.stack(plain.first_last(layers))) for layers in states]
    )
    mean, matrix = plain.whiten(vectors.double())
    tensors = Whitening.fit(encoder().encode(several))
    whitened = encoder(
        tensors, transforms=("whitening" if k is None else f"whitening:{k}",)
    ).encode(several)
    expected = ((vectors.double() - mean) @ matrix)[:, :k].numpy()
    signs = np.sign((whitened * expected).sum(0))  # an eigenvector's sign is free
    # s^-1/2 enlarges the rounding of the smallest s
    assert gap(whitened, signs * expected) < 1e-3
    if k is None:
        assert gap(np.cov(whitened, rowvar=False), np.eye(whitened.shape[1])) < 1e-3


def test_cls_pooler_is_the_pretrained_pooler(encoder, family, tmp_path):
    """Only checkpoints that hold a pooler have one; a masked-LM checkpoint does not."""
    with refusal("no pooler weights"):
        encoder(pooling="last/cls", transforms=("cls-pooler",))
    if family == "electra":  # the family has no pooler at all
        return
    model_class = {"bert": BertModel, "roberta": RobertaModel, "mpnet": MPNetModel}[family]
    folder = save_tiny(family, tmp_path, model_class=model_class)
    model = model_class.from_pretrained(folder).eval()
    recipe = Recipe(backbone=str(folder), pooling="last/cls", transforms=("cls-pooler",))
    pooled = build_encoder(recipe, dtype="float32")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    with torch.no_grad():
        expected = [model(**tokenizer(s, return_tensors="pt")).pooler_output[0] for s in SENTENCES]
    assert_rows(pooled, expected)
