"""Token Prepending with a placeholder for each block of a text: layout, states, cuts, refusals."""

import numpy as np
import pytest
import torch

from promptcli.backbones.states import Needs
from promptcli.embedding.splitting import Splitter
from promptcli.encoder.encoder import build_encoder, encode_together
from promptcli.encoder.pooling.content import ContentTokens
from promptcli.encoder.prompts.token_prepending import OF_BLOCK, OF_TEXT, split_sentences
from promptcli.grammar import parse_prompt
from promptcli.models.sentence_transformers_format import InexactError, write_tokenizer
from promptcli.plugins.graphs.graph_files import EncoderGraph
from promptcli.recipe import RECIPES, Recipe
from tests.comparing import gap, refusal
from tests.reference import plain
from tests.reference.causal import block_prepending
from tests.tiny_causal import CAUSAL

BLOCKS = [
    ["The cat sleeps.", " It is old!", " Is the dog \"here\"?", " No."],
    ["Rain falls."],
    ["He said \"go!\"", " Then it rains."],
]  # fmt: skip
TEXTS = ["".join(blocks) for blocks in BLOCKS]
QUOTED = 'This sentence : "[X]" means'
HTP = RECIPES["htp"].replace(period=False)


def hierarchical(blocks, template="[X]", layers="1-3"):
    return HTP.replace(prompt=f"token-prepending:{layers};{blocks}:{template}")


def embeddings(backbone):
    generator = torch.Generator().manual_seed(0)
    width = backbone.word_embeddings.size(1)
    return [torch.randn(1, width, generator=generator)[0] for _ in range(2)]


def with_spare_tokens(row, backbone):
    """The row with tokens that are nowhere else in it for the placeholders, and these."""
    spare = [token for token in range(len(backbone.word_embeddings)) if token not in row][:2]
    marks = dict(zip((OF_BLOCK, OF_TEXT), spare, strict=True))
    return [marks.get(token, token) for token in row], spare


@pytest.mark.parametrize("blocks", ["sentences", "1"])
@pytest.mark.parametrize("template", ["[X]", QUOTED])
@pytest.mark.parametrize("family", CAUSAL)
def test_it_equals_the_plain_loop(family, template, blocks, tiny_backbone, plain_backbone):
    reference = plain_backbone(family)
    backbone = tiny_backbone(family)
    encoder = build_encoder(hierarchical(blocks, template, "0-2"), backbone=backbone)
    mean = build_encoder(encoder.recipe.replace(pooling="last/avg"), backbone=backbone)
    end = build_encoder(encoder.recipe.replace(pooling="last/last-token"), backbone=backbone)
    together = encode_together([encoder, mean, end], TEXTS)
    one = build_encoder(HTP.replace(prompt=f"token-prepending:{template}"), backbone=backbone)
    whole = encode_together([encoder], [""])[0]
    assert np.isfinite(whole.vectors).all()
    of_one = one.batch(one.inputs(TEXTS).ids)
    content = ContentTokens(one.template, backbone.tokenizer).mask(of_one)
    for number, row in enumerate(encoder.inputs(TEXTS).ids):
        place = one.template.placeholder
        kept = one.inputs(TEXTS).ids[number]
        of_text = content[number, : len(kept)].tolist()
        del kept[place], of_text[place]
        assert [token for token in row if token >= 0] == kept
        assert row.count(OF_TEXT) == row.count(OF_BLOCK)
        ids, spare = with_spare_tokens(row, backbone)
        after = len(ids) - len(encoder.template.suffix)
        marks = list(zip(spare, embeddings(backbone), strict=True))
        states = block_prepending(reference, ids, marks, 0, 2, after)
        places = [place for place, token in enumerate(row) if token >= 0]
        places = [place for place, own in zip(places, of_text, strict=True) if own]
        for pooled, wanted in zip(
            together,
            (plain.average(states[-2][places]), states[-1].mean(0), states[-1][-1]),
            strict=True,
        ):
            assert gap(pooled.vectors[number], wanted.numpy()) < 1e-5
    order = np.random.default_rng(0).permutation(len(TEXTS))
    again = encoder.encode([TEXTS[place] for place in order], batch_size=2)
    assert gap(again, together[0].vectors[order]) < 1e-5


@pytest.mark.parametrize("family", [name for name in CAUSAL if name != "llama"])
def test_the_placeholders_stand_where_added_tokens_would(family, tiny_backbone, tiny_folder):
    reference = plain.Plain(tiny_folder(family), causal=True)
    reference.tokenizer.add_tokens(["<P>", "<B>"])
    added = dict(zip(reference.tokenizer.convert_tokens_to_ids(["<P>", "<B>"]), (OF_BLOCK, OF_TEXT),
                     strict=True))  # fmt: skip
    encoder = build_encoder(hierarchical("sentences", QUOTED), backbone=tiny_backbone(family))
    for blocks, row in zip(BLOCKS, encoder.inputs(TEXTS).ids, strict=True):
        first, *others = blocks
        marked = "<P>" + ' "' + first + "".join(f"<P>{block}" for block in others)
        text = f'This sentence : {"<B>" * len(blocks)}{marked}" means'
        ids = reference.ids(text, "")
        assert row == [added.get(token, token) for token in ids]


def test_a_text_of_one_block_is_token_prepending(tiny_backbone):
    backbone = tiny_backbone("llama")
    for template in ("[X]", "Say [X]"):
        one = build_encoder(hierarchical("sentences", template), backbone=backbone)
        plain_one = build_encoder(
            HTP.replace(prompt=f"token-prepending:1-3:{template}"), backbone=backbone
        )
        row = one.inputs(["Rain falls."]).ids[0]
        of_one = one.batch([[token for token in row if token != OF_TEXT]])
        of_plain = plain_one.batch(plain_one.inputs(["Rain falls."]).ids)
        needs = Needs(layers=frozenset(range(backbone.n_layers + 1)))
        both = [backbone.run(batch, needs).layers for batch in (of_one, of_plain)]
        for layer in needs.layers:
            assert torch.equal(both[0][layer], both[1][layer])


def test_the_first_block_sees_the_last_one_by_the_placeholders_of_the_text(tiny_backbone):
    backbone = tiny_backbone("llama")
    encoder = build_encoder(hierarchical("sentences"), backbone=backbone)
    texts = ["The cat sleeps. It is old. Rain falls.", "The cat sleeps. It is old. He said no."]
    rows = encoder.inputs(texts).ids
    needs = Needs(layers=frozenset({backbone.n_layers}))

    def first_block(row):
        states = backbone.run(encoder.batch([row]), needs).layers[backbone.n_layers][0]
        blocks = [place for place, token in enumerate(row) if token == OF_BLOCK]
        return states[blocks[0] + 1 : blocks[1]]

    one, other = map(first_block, rows)
    assert gap(one, other) > 1e-3
    without = [[token for token in row if token != OF_TEXT] for row in rows]
    one, other = map(first_block, without)
    assert torch.allclose(one, other, atol=1e-6)


@pytest.mark.parametrize("blocks", ["sentences", "3"])
@pytest.mark.parametrize("side", ["right", "left"])
def test_a_cut_text_leaves_no_placeholder_without_its_block(blocks, side, tiny_backbone):
    backbone = tiny_backbone("llama")
    tokenizer = backbone.tokenizer
    whole = build_encoder(hierarchical(blocks, QUOTED), backbone=backbone)
    before = tokenizer.cuts_left
    tokenizer.cuts_left = side == "left"
    long = f"{TEXTS[0]} The rain falls"
    try:
        full = whole.inputs([long]).ids[0]
        text = [token for token in full if token >= 0]
        with refusal("leaves no room"):
            build_encoder(whole.recipe.replace(max_length=whole.template.length), backbone=backbone)
        for length in range(whole.template.length + 1, len(full) + 2):
            encoder = build_encoder(whole.recipe.replace(max_length=length), backbone=backbone)
            inputs = encoder.inputs([long, ""])
            row = inputs.ids[0]
            assert inputs.truncated.tolist() == [length < len(full), False]
            assert length - 2 <= len(row) <= length or row == full
            blocks_at = [place for place, token in enumerate(row) if token == OF_BLOCK]
            assert all(row[place + 1] >= 0 for place in blocks_at)
            assert len(blocks_at) == row.count(OF_TEXT) > 0
            kept = [token for token in row if token >= 0]
            begin, end = len(encoder.template.left), len(encoder.template.right)
            inner = kept[begin : len(kept) - end]
            own = text[begin : len(text) - end]
            assert inner == (own[len(own) - len(inner) :] if side == "left" else own[: len(inner)])
            assert kept[:begin] == encoder.template.left
            assert kept[len(kept) - end :] == encoder.template.right
            assert np.isfinite(encoder.encode([long, ""])).all()
    finally:
        tokenizer.cuts_left = before


def test_the_mean_leaves_out_placeholders_template_and_what_touches_the_text(tiny_backbone):
    backbone = tiny_backbone("gpt2")
    for blocks in ("sentences", "1", "4"):
        encoder = build_encoder(hierarchical(blocks, QUOTED), backbone=backbone)
        alone = build_encoder(
            HTP.replace(prompt=QUOTED, pooling="last/content-avg"), backbone=backbone
        )
        rows = encoder.inputs([*TEXTS, ""]).ids
        batch = encoder.batch(rows)
        read = encoder.pooling.weights.read(batch)
        plain_rows = alone.inputs([*TEXTS, ""]).ids
        plain_batch = alone.batch(plain_rows)
        plain_read = alone.pooling.weights.read(plain_batch)
        for number in range(len(TEXTS)):
            expected = plain_batch.ids[number][plain_read[number]].tolist()
            assert batch.ids[number][read[number]].tolist() == expected


def test_empty_texts_beside_others_are_read_without_placeholders(tiny_backbone):
    backbone = tiny_backbone("gpt2")
    encoder = build_encoder(hierarchical("sentences"), backbone=backbone)
    vectors = encoder.encode(["", TEXTS[0], "  "])
    assert np.isfinite(vectors).all()
    assert gap(encoder.encode([""])[0], vectors[0]) < 1e-6
    assert min(encoder.inputs([""]).ids[0]) >= 0
    averaged = build_encoder(encoder.recipe.replace(pooling="static/avg"), backbone=backbone)
    row = averaged.inputs(TEXTS[:1]).ids[0]
    marks = dict(zip((OF_BLOCK, OF_TEXT), embeddings(backbone), strict=True))
    rows = [
        marks[token] if token < 0 else backbone.word_embeddings[token].detach() for token in row
    ]
    wanted = torch.stack(rows).mean(0).numpy()
    assert gap(averaged.encode(TEXTS[:1])[0], wanted) < 1e-5


@pytest.mark.parametrize(
    "text",
    [
        "token-prepending:1-7;sentences:[X]",
        "token-prepending:1-7;64:prompteol",
        "token-prepending:;sentences:a: [X]",
        "token-prepending:1-7:[X]",
        "token-prepending:12 - x: [X]",
    ],
)
def test_the_grammar_prints_what_it_reads(text):
    assert str(parse_prompt(text)) == text


def test_htp_has_its_default_layers_and_takes_reversed_words(tiny_backbone):
    backbone = tiny_backbone("llama")
    encoder = build_encoder(HTP, backbone=backbone)
    assert encoder.recipe.prompt == "token-prepending:1-2;sentences:[X]"
    assert build_encoder(encoder.recipe, backbone=backbone).fingerprint == encoder.fingerprint
    turned = build_encoder(HTP.replace(prompt=f"reversed:{HTP.prompt}"), backbone=backbone)
    assert gap(turned.encode(["cat the."]), encoder.encode(["the cat."])) < 1e-5


def test_what_cannot_be_joined_with_blocks_is_refused(tiny_backbone, tmp_path):
    causal = tiny_backbone("llama")
    for prompt, backbone, said in [
        ("token-prepending:1-1;sentences:[X]", causal, "1-1 is not allowed"),
        ("token-prepending:1-3;0:[X]", causal, "TOKENS"),
        ("token-prepending:1-3;sentence:[X]", causal, "TOKENS"),
        ("token-prepending:1-3;sentences:[X] [X]", causal, "has 2"),
        ("token-prepending:1-3;sentences:[X]", tiny_backbone("bert"), "is for causal models"),
        ("contrastive:0:0.5:token-prepending:1-2;4:[X] || [X]", causal, "no blocks"),
    ]:
        with refusal(said):
            build_encoder(Recipe(prompt=prompt, pooling="last/avg"), backbone=backbone)
    with refusal("in blocks"):
        build_encoder(
            Recipe(prompt="token-prepending:1-3;4:Say [X]", pooling="last/avg", denoise="hidden"),
            backbone=causal,
        )
    encoder = build_encoder(HTP, backbone=causal)
    with pytest.raises(InexactError, match="placeholders"):
        write_tokenizer(encoder, tmp_path)
    with pytest.raises(InexactError, match="token-prepending"):
        EncoderGraph(encoder)


def test_parts_of_a_long_text_fit_with_their_placeholders(tiny_backbone):
    encoder = build_encoder(HTP.replace(max_length=40), backbone=tiny_backbone("llama"))
    parts = Splitter(encoder).parts(" ".join(TEXTS))
    inputs = encoder.inputs(parts)
    assert len(parts) > 1 and not any(inputs.truncated)
    assert max(map(len, inputs.ids)) <= 40


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("One. Two! Three? Four", 4),
        ('He said "go." Then (why?) left.', 3),
        ("一。二」三！」四。 五", 4),
        ("No end", 1),
        ("3.5 is a number... yes", 2),
        ("", 1),
    ],
)  # fmt: skip
def test_sentences_are_the_text(text, count):
    sentences = split_sentences(text)
    assert "".join(sentences) == text
    assert len(sentences) == count
