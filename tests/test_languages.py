"""More than one language: end marks by script, templates in any script, the tokenizers of
multilingual models.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import normalizers, pre_tokenizers
from transformers import BertConfig, BertForMaskedLM, XLMRobertaConfig, XLMRobertaForMaskedLM

from promptcli.backbones.by_name import load_backbone
from promptcli.encoder.encoder import build_encoder
from promptcli.encoder.template import STOPS, with_period
from promptcli.recipe import Recipe
from tests import tiny

SENTENCES = [
    "The cat sleeps on the mat",
    "猫在垫子上睡觉",
    "猫がマットの上で寝ている",
    "बिल्ली चटाई पर सो रही है",
    "القطة نائمة على السجادة",
    "החתול ישן על השטיח",
    "แมวนอนบนเสื่อ",
    "Кошка спит на коврике",
    "고양이가 매트 위에서 잔다",
    "կատուն քնում է գորգի վրա",
    "a  b\u3000c\td",
]
TEMPLATES = [
    'This sentence : "[X]" means [MASK] .',
    "“[X]”的意思是[MASK]。",
    "「[X]」という文は[MASK]を意味する。",
    "[X]の意味は[MASK]です",
    "วลี[X]หมายถึง[MASK]",
    'تعني "[X]" [MASK] .',
    "המשפט [X] אומר[MASK].",
    "[X] का अर्थ [MASK] है।",
]


def _unigram():
    """XLM-R's: split at spaces first, then every word gets its mark.

    <mask> takes the space before it.
    """
    before = pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(prepend_scheme="always")
    texts, specials = [*SENTENCES, *TEMPLATES], tiny._ROBERTA_SPECIALS
    return tiny._roberta_like(
        tiny.unigram(texts, 260, specials, *before, normalizer=normalizers.NFKC())
    )


def _wordpiece():
    """Multilingual BERT's: cased, ideographs apart, every other run of letters one word of
    pieces.
    """
    letters = sorted(set("".join([*SENTENCES, *TEMPLATES])) - {" ", "\t", "\u3000"})
    return tiny.wordpiece(
        [*letters, *map("##{}".format, letters), "การ", "##หมาย", "ので"], lowercase=False
    )


MODELS = {
    "xlm-roberta": (XLMRobertaConfig, tiny._ROBERTA, XLMRobertaForMaskedLM, _unigram),
    "bert": (BertConfig, tiny._COMMON, BertForMaskedLM, _wordpiece),
}


@pytest.fixture(scope="module", params=MODELS)
def multilingual(request, tmp_path_factory):
    """A tiny model with a multilingual vocabulary: its folder, its own tokenizer, and the backbone
    made of it.
    """
    config_class, options, model_class, make_tokenizer = MODELS[request.param]
    folder, tokenizer = tmp_path_factory.mktemp(request.param), make_tokenizer()
    model_class(config_class(vocab_size=len(tokenizer), **options)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder, tokenizer, load_backbone(str(folder))


def ids_of_the_filled(template, sentence, tokenizer):
    return tokenizer(template.replace("[MASK]", tokenizer.mask_token).replace("[X]", sentence))[
        "input_ids"
    ]


@pytest.mark.parametrize("template", ["[X]", *TEMPLATES])
def test_the_ids_are_those_of_the_filled_template(template, multilingual):
    _, tokenizer, backbone = multilingual
    pooling = "last/mask" if "[MASK]" in template else "last/avg"
    encoder = build_encoder(Recipe(prompt=template, pooling=pooling), backbone=backbone)
    period = bool(encoder.recipe.period)
    for sentence in SENTENCES:
        expected = ids_of_the_filled(
            template, with_period(sentence) if period else sentence, tokenizer
        )
        row = encoder.inputs([sentence]).ids[0]
        assert row == expected, (sentence, tokenizer.convert_ids_to_tokens(row))
        if "[MASK]" in template:
            assert encoder.template.mask_positions(np.array([len(row)]))[0].tolist() == [
                expected.index(tokenizer.mask_token_id)
            ]
    assert encoder.encode(SENTENCES).shape == (len(SENTENCES), encoder.backbone.width)


@settings(max_examples=150)
@given(
    template=st.sampled_from(TEMPLATES),
    sentence=st.text(
        st.sampled_from("cat 猫ので寝るแมวเสื่อ।है نام? \u3000。"), min_size=1, max_size=12
    ),
)
def test_any_sentence_in_any_template(template, sentence, multilingual):
    _, tokenizer, backbone = multilingual
    encoder = build_encoder(
        Recipe(prompt=template, pooling="last/mask", period=False), backbone=backbone
    )
    if sentence.strip():
        assert encoder.inputs([sentence]).ids[0] == ids_of_the_filled(
            template, sentence.strip(), tokenizer
        )


@pytest.mark.parametrize(
    ("sentence", "expected"),
    [
        ("A dog barks", "A dog barks."),
        ("A dog barks!", "A dog barks!."),  # as published
        ("Ein “Hund”", "Ein “Hund”."),
        ("Собака лает", "Собака лает."),
        ("狗在叫", "狗在叫。"),
        ("狗在叫吗？", "狗在叫吗？"),
        ("「犬が吠える」", "「犬が吠える」"),
        ("コーヒー", "コーヒー。"),
        ("我用 Python。", "我用 Python。"),
        ("我用 Python", "我用 Python."),
        ("कुत्ता भौंकता है", "कुत्ता भौंकता है।"),
        ("क्या कुत्ता भौंकता है?", "क्या कुत्ता भौंकता है?"),
        ("কুকুর ডাকে", "কুকুর ডাকে।"),
        ("الكلب ينبح", "الكلب ينبح."),
        ("هل الكلب ينبح؟", "هل الكلب ينبح؟"),
        ("کتا بھونک رہا ہے۔", "کتا بھونک رہا ہے۔"),
        ("շունը հաչում է", "շունը հաչում է։"),
        ("สุนัขเห่า", "สุนัขเห่า"),
        ("개가 짖는다", "개가 짖는다."),
        ("በሉ", "በሉ።"),
        ("Ο σκύλος γαβγίζει;", "Ο σκύλος γαβγίζει;"),
        ("猫 3", "猫 3。"),
        ("42", "42."),
        ("…", "…."),
        ("", ""),
    ],
)
def test_the_end_mark_of_the_script(sentence, expected):
    assert with_period(sentence) == expected


@given(st.text())
def test_an_end_mark_is_put_once_and_ascii_follows_the_published_rule(text):
    assert with_period(with_period(text)) == with_period(text) and with_period(text).startswith(
        text
    )
    if text.isascii() and text:
        assert with_period(text) == (text if text[-1] in ".?\"'" else text + ".")
    assert set(STOPS.values()) >= {".", "。", "।", ""}
