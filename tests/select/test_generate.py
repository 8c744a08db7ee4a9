"""Generated templates: a shared beam over T5, proved against plain loops."""

import itertools
from contextlib import nullcontext

import pytest
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, T5Config, T5ForConditionalGeneration

from promptcli.backbones.t5 import load_t5
from promptcli.data.demo import DEFINITIONS_FILE
from promptcli.errors import NotFoundError, UsageError
from promptcli.notes import showing_stages, without_network
from promptcli.recipe import MASK, SLOT
from promptcli.select import generate_t5
from promptcli.select.generate_t5 import FORMS, Definition, choose_definitions, read_definitions
from tests.comparing import refusal

MEANINGS = {
    "river": "a stream of water",
    "bread": "food made of flour and water that is baked",
    "king": "a man",
}
PAIRS = [Definition(*pair) for pair in MEANINGS.items()]
WORDS = [
    "▁",
    "▁a",
    "▁of",
    "▁water",
    "▁means",
    ".",
    "....",
    ":",
    "▁river",
    "▁bread",
    "▁king",
    "▁A",
    "▁called",
    "▁.",
]


def save_t5(folder, *, sentinels=3, words=WORDS):
    """Save a tiny random T5 with a vocabulary of whole words."""
    specials = ["<pad>", "</s>", "<unk>"]
    marks = [f"<extra_id_{number}>" for number in range(sentinels)]
    vocabulary = {item: number for number, item in enumerate([*specials, *words, *marks])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="always")
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="</s>", unk_token="<unk>",
        additional_special_tokens=[AddedToken(mark, special=True) for mark in marks],
    )  # fmt: skip
    torch.manual_seed(0)
    config = T5Config(
        vocab_size=len(vocabulary) + 5, d_model=16, d_kv=4, d_ff=24, num_layers=2, num_heads=4,
        decoder_start_token_id=0, pad_token_id=0, eos_token_id=1, initializer_factor=1.0,
    )  # fmt: skip
    model = T5ForConditionalGeneration(config)
    # the head is tied to it: a random T5 is all too sure of repeating itself
    model.shared.weight.data.mul_(0.2)
    model.save_pretrained(folder)
    fast.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def t5_folder(tmp_path_factory):
    return save_t5(tmp_path_factory.mktemp("t5"))


@pytest.fixture(scope="module")
def t5(t5_folder):
    return load_t5(str(t5_folder))


def test_logits_are_the_model_s_own_one_example_at_a_time(t5, t5_folder):
    model = T5ForConditionalGeneration.from_pretrained(t5_folder).eval()
    inputs = [[4, 5, 6, 1], [7, 1], [4, 4, 4, 4, 8, 1]]
    written = [t5.sentinels[0], 5, 9]
    found = t5.next_logits(t5.read(inputs), written)
    for row, ids in zip(found, inputs, strict=True):
        with torch.no_grad():
            plain = model(
                input_ids=torch.tensor([ids]), decoder_input_ids=torch.tensor([[0, *written]])
            ).logits
        torch.testing.assert_close(row, plain[0, -1])


def test_inputs_of_both_forms_and_long_ones_keep_the_side_with_the_blanks(t5):
    first, second = (generate_t5._input(t5, form, PAIRS[0]) for form in FORMS)
    zero, one, _ = t5.sentinels
    sentence, word = t5.encode("A stream of water"), t5.encode(" river")
    assert t5.text(sentence).startswith(" A")  # the first letter is a capital
    assert first == [*sentence, zero, *word, one, t5.end]
    assert second == [*t5.encode("."), zero, *word, one, *sentence]
    for form in FORMS:
        ids = generate_t5._input(t5, form, Definition("river", "water " * 400))
        assert len(ids) == 256 and {*t5.sentinels[:2]} <= {*ids}


class TableT5:
    """In the place of a T5: logits are a fixed function of the example and of the output so far."""

    sentinels = (5, 6, 7)
    end = 8
    TEXTS = (" a", " b", ".", "...", " ")

    def words(self):
        return dict(enumerate(self.TEXTS))

    def encode(self, text):
        return [0] * len(text.split())

    def text(self, ids):
        return "".join(self.TEXTS[number] for number in ids)

    def read(self, inputs):
        return list(range(len(inputs)))

    def next_logits(self, examples, written):
        rows = []
        for example in examples:
            generator = torch.Generator().manual_seed(hash((example, tuple(written))) % (1 << 31))
            rows.append(torch.randn(9, generator=generator) * 3)
        return torch.stack(rows)


def enumerated(t5, examples, longest):
    """Every allowed sequence with its score, by plain loops."""
    found = {}
    for length in range(2, longest):
        for tokens in itertools.product((0, 1, 2, 6, 7, 8), repeat=length):
            written, score, ends = [5], 0.0, 0
            for token in tokens:
                ends_part = token in (6 + ends, 8)
                bad = (
                    (token in (6, 7) and not ends_part)
                    or ends == 2
                    or (token == 2 and written[-1] == 2)
                )
                if bad:
                    break
                mean = t5.next_logits(examples, written).mean(0)
                score += float((mean - mean.exp().sum().log())[token])
                written.append(token)
                ends += ends_part
            else:
                if ends == 2:
                    found[tuple(written)] = score
    return sorted(found.items(), key=lambda item: -item[1])


def test_a_wide_beam_finds_what_enumeration_finds(monkeypatch):
    monkeypatch.setattr(
        generate_t5, "_MAX_OUTPUT_TOKENS", 6
    )  # start, first sentinel, and four tokens
    table = TableT5()
    found = generate_t5._search(table, [0, 1], 100_000, lambda done: None)
    expected = enumerated(table, [0, 1], 5)
    assert [item.tokens for item in found] == [written for written, _ in expected]
    assert [item.score for item in found] == pytest.approx(
        [value for _, value in expected], abs=1e-4
    )


def test_t5_writes_templates_of_one_text_and_one_mask(t5, monkeypatch):
    monkeypatch.setattr(generate_t5, "_MAX_OUTPUT_TOKENS", 5)
    done = []
    with showing_stages(lambda name, steps: nullcontext(lambda step: done.append(step / steps))):
        found = generate_t5.generate_templates(t5, PAIRS, beam=500)
    assert 2 <= len(found) <= 500 and len(set(found)) == len(found)
    assert sum(done) == pytest.approx(1)
    for text in found:
        assert (
            text.count(SLOT) == text.count(MASK) == 1
            and "extra_id" not in text
            and ".." not in text
        )
        assert text.startswith(SLOT) or text.endswith(SLOT)
    assert {text.startswith(SLOT) for text in found} == {True, False}  # both forms


def test_t5_refuses_what_makes_no_template(t5, monkeypatch):
    monkeypatch.setattr(generate_t5, "_MAX_OUTPUT_TOKENS", 3)  # room for one token
    for pairs, beam, message in ((PAIRS, 100, "within 3 tokens"),):
        with refusal(message):
            generate_t5.generate_templates(t5, pairs, beam=beam)


def test_a_t5_that_cannot_be_had(t5_folder, bert_folder, tmp_path):
    for name, config in (
        ("pickled", (t5_folder / "config.json").read_text()),
        ("broken", '{"model_type": null}'),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(config)
        (tmp_path / name / "pytorch_model.bin").write_bytes(b"")
    for folder, error, message in (
        (tmp_path / "nosuch", NotFoundError, "no backbone folder"),
        ("nobody/no-such-t5", NotFoundError, "offline"),
        (bert_folder, UsageError, "is of family 'bert', not a T5"),
        (save_t5(tmp_path / "few", sentinels=2), UsageError, "no token <extra_id_2>"),
        (tmp_path / "pickled", UsageError, "a pickle and can run code"),
        (tmp_path / "broken", UsageError, "not a T5"),
    ):
        with without_network(), pytest.raises(error, match=message):
            load_t5(str(folder))


def test_definitions_are_those_of_words_of_a_single_token(tmp_path, tiny_backbone, monkeypatch):
    path = tmp_path / "pairs.tsv"
    path.write_text("word\tdefinition\ndog\tan animal\ncat\t an animal too \n", encoding="utf-8")
    assert read_definitions(path) == [("dog", "an animal"), ("cat", "an animal too")]
    assert read_definitions(DEFINITIONS_FILE)[0].word == "river"  # the header is not a pair
    path.write_text("dog an animal\n", encoding="utf-8")
    with refusal(r"pairs\.tsv"):
        read_definitions(path)
    tokens = tiny_backbone("bert").tokenizer
    pairs = [Definition(word, "x") for word in ("un", "i", "zebra", "the", "a")]
    assert [pair.word for pair in choose_definitions(pairs, tokens)] == ["un", "i", "the", "a"]
    monkeypatch.setattr(generate_t5, "_MAX_PAIRS", 2)
    assert [pair.word for pair in choose_definitions(pairs, tokens)] == ["un", "the"]
    with refusal("single token"):
        choose_definitions(pairs[2:3], tokens)
