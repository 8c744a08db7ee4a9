"""RoBERTa's own tokenizer, real sentences: spliced ids equal the filled string's, and the published
layout holds.
"""

import numpy as np
import pytest
from transformers import AutoTokenizer

from promptcli.backbones.tokenizer import PieceTokenizer
from promptcli.encoder.template import Template
from promptcli.named_templates import template_text

pytestmark = pytest.mark.data


@pytest.fixture(scope="module")
def roberta(data_folder):
    folder = data_folder.parent / "models" / "tokenizers" / "roberta-base"
    if not folder.is_dir():
        pytest.skip(
            "real data: RoBERTa's tokenizer is not next to the folder of PROMPTCLI_TEST_DATA"
        )
    return AutoTokenizer.from_pretrained(folder)


@pytest.fixture(scope="module")
def sentences(data_folder):
    return (data_folder / "pud" / "sentences.txt").read_text(encoding="utf-8").splitlines()[:400]


@pytest.mark.parametrize(
    "name", ["manual-roberta", "manual-roberta-the", "manual", "also-called", "[X]"]
)
def test_spliced_ids_equal_the_filled_string(name, roberta, sentences):
    tokens = PieceTokenizer(roberta, "roberta")
    template = Template(template_text(name), tokens)
    texts = template.with_touching([sentence.strip() for sentence in sentences])
    rows = template.inputs(texts, tokens.encode_ragged, 512).ids
    for sentence, row in zip(sentences, rows, strict=True):
        filled = template.text.replace("[MASK]", roberta.mask_token).replace("[X]", sentence)
        assert row == roberta(filled)["input_ids"]


def test_a_prompt_has_the_published_layout(roberta):
    """4 tokens before the sentence, 4 behind it and 2 specials.

    The last token is "." without a blank.
    """
    template = Template(template_text("manual-roberta"), PieceTokenizer(roberta, "roberta"))
    assert template.length == 10
    words = roberta.convert_ids_to_tokens([*template.left, *template.right])
    assert words == ["<s>", "This", "Ġsentence", "Ġ:", "Ġ'", "Ġ'", "Ġmeans", "<mask>", ".", "</s>"]
    assert template.mask_positions(np.array([template.length + 5])).tolist() == [[12]]
