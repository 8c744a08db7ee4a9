"""Texts of a run are tokenised once, as long as their rows fit."""

from unittest.mock import Mock

import pytest

from promptcli.training.trainable_encoder import KeptRows
from tests.learning import learner_of
from tests.tiny import SENTENCES

LONG = "a cat " * 40


@pytest.mark.parametrize("name", ["simcse", "promptbert"])
def test_each_template_tokenises_a_text_once(name, tiny_folder):
    learner = learner_of(name, tiny_folder("bert"))
    encoders = set(learner.template_encoders)
    for encoder in encoders:
        encoder.inputs = Mock(wraps=encoder.inputs)
    learner.cut_texts([(0, SENTENCES)])
    for start in (0, 3, 5, 0):
        texts = SENTENCES[start : start + 4]
        for side in learner.tokenize([texts]):
            assert side.rows == type(side.encoder).inputs(side.encoder, texts).rows
    for encoder in encoders:
        read = [text for call in encoder.inputs.call_args_list for text in call.args[0]]
        assert len(read) == len(set(read))


@pytest.mark.parametrize("most_bytes", [0, 1, 10**6])
def test_rows_are_the_same_however_many_are_kept(most_bytes, tiny_folder):
    encoder = learner_of("simcse", tiny_folder("bert")).template_encoders[0]
    kept = KeptRows(encoder, most_bytes)
    texts = [SENTENCES[0], LONG, SENTENCES[1], SENTENCES[0], ""]
    for read in (texts[:2], texts, texts[::-1], SENTENCES):
        assert kept.rows(read) == encoder.inputs(read).rows
    assert kept.read(texts).truncated.tolist() == encoder.inputs(texts).truncated.tolist()


def test_texts_beyond_the_room_are_not_kept(tiny_folder):
    encoder = learner_of("simcse", tiny_folder("bert")).template_encoders[0]
    kept = KeptRows(encoder, 1)
    kept.read(SENTENCES[:3])
    encoder.inputs = Mock(wraps=encoder.inputs)
    kept.rows(SENTENCES[:3])
    assert not encoder.inputs.called
    for _ in range(2):
        kept.rows([SENTENCES[1], SENTENCES[5]])
    assert [call.args[0] for call in encoder.inputs.call_args_list] == [[SENTENCES[5]]] * 2
