"""``token-prepending:[START-EXIT][;BLOCKS]:TEMPLATE``: the sentence sees its own summary (Token
Prepending), or the summaries of its blocks (Hierarchical Token Prepending). Nothing is learned.
"""

import functools
import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from promptcli.backbones.devices import to_device
from promptcli.backbones.published_backbones import published_name
from promptcli.backbones.ragged_ids import RaggedIds
from promptcli.backbones.states import Batch, Prepending, SoftTokens
from promptcli.backbones.tokenizer import PieceTokenizer
from promptcli.encoder.components import BuildContext, Prompt
from promptcli.encoder.template import END_MARKS, ModelInputs, Template
from promptcli.grammar import Pair
from promptcli.named_templates import template_text

#: A block's two placeholders: the one in front of the block, the one in front of the whole text.
#: Unlike the ids of texts, they are negative.
OF_BLOCK, OF_TEXT = -1, -2
_CLOSING = "\"'”’»)\\]」』】〟"  # noqa: RUF001
_UNSPACED = "。．｡！？"  # noqa: RUF001 - end marks of scripts without spaces
#: The end of a sentence before the next one.
_END = re.compile(
    rf"[{re.escape(''.join(END_MARKS))}…][{_CLOSING}]*(?=\s)|[{_UNSPACED}][{_CLOSING}]*(?=[^\s{_CLOSING}])"
)


def split_sentences(text: str) -> list[str]:
    """Return the sentences of a text, each with the white space before it; joined, they are the
    text.
    """
    ends = [end.end() for end in _END.finditer(text)]
    return [text[start:end] for start, end in zip([0, *ends], [*ends, len(text)], strict=True)]


class PlaceholderTemplate(Template):
    """A template with one [X], and a placeholder, the token for padding, right before its piece."""

    has_placeholders = True

    def __init__(self, text: str, tokenizer: PieceTokenizer) -> None:
        super().__init__(text, tokenizer)
        self.placeholder = len(self.prefix)  #: its position
        self.left.insert(self.placeholder, tokenizer.pad)
        self.prefix.append(tokenizer.pad)


class BlockTemplate(Template):
    """A template with one [X], whose text is cut into its sentences, or every ``size`` tokens.

    A placeholder for each block is in front of the block, and another in front of the whole text
    (Hierarchical Token Prepending): ``[words] T..T B block B block ... B block [words]``.
    """

    has_placeholders = True
    has_blocks = True

    def __init__(self, text: str, tokenizer: PieceTokenizer, size: int | None) -> None:
        super().__init__(text, tokenizer)
        self._size = size  # tokens of a block; None: a block is a sentence

    @property
    def length(self) -> int:
        return super().length + 2  # the placeholders of one block

    def longest_input(self, size: int) -> int:
        return self.length + 3 * size  # a block has a token or more, and two placeholders

    def inputs(
        self,
        texts: Sequence[str],
        tokenize: Callable[[Sequence[str]], RaggedIds],
        max_length: int,
    ) -> ModelInputs:
        self.check_room(max_length)
        sentences_of_texts = [
            split_sentences(text) if self._size is None else [text] for text in texts
        ]
        ids_of_sentences = iter(tokenize(list(itertools.chain(*sentences_of_texts))))
        inputs = []
        truncated = []
        for sentences in sentences_of_texts:
            blocks = [next(ids_of_sentences) for _ in sentences]
            if self._size is not None:
                [ids] = blocks
                starts = range(0, len(ids), self._size)
                blocks = [ids[start : start + self._size] for start in starts]
            blocks, is_cut = self._cut_blocks([block for block in blocks if block], max_length)
            ids = [*self.prefix, *[OF_TEXT] * len(blocks)]
            for block in blocks:
                ids += [OF_BLOCK, *block]
            inputs.append([*ids, *self.suffix] or [self._tokenizer.pad])
            truncated.append(is_cut)
        return ModelInputs(RaggedIds.of(inputs), np.array(truncated))

    def _cut_blocks(self, blocks: list[list[int]], max_length: int) -> tuple[list[list[int]], bool]:
        """Return the blocks that fit with their placeholders, and whether tokens were lost.

        The characters that touch [X] are kept.
        """
        room = self.piece_capacity(max_length)
        if sum(len(block) + 2 for block in blocks) <= room:
            return blocks, False
        touching = self._after_ids
        if self._tokenizer.cuts_left:  # the same in the mirror
            touching = self._before_ids[::-1]
            blocks = [block[::-1] for block in reversed(blocks)]
        room -= len(touching)
        fitting: list[list[int]] = []
        for block in blocks:
            size = min(len(block), room - 2)
            if size < 1:
                break
            fitting.append(block[:size])
            room -= size + 2
        fitting[-1] += touching
        if self._tokenizer.cuts_left:
            fitting = [block[::-1] for block in reversed(fitting)]
        return fitting, True

    def placeholders(
        self, inputs: NDArray[np.int64], lengths: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the positions (n, k) of the placeholders in padded inputs (n, t) of these lengths
        (n,), and the positions of their sources, the tokens whose states they get.

        The source of a block's placeholders is the block's last token; of the last block's it is
        the first token after the text, if there is one. An input with fewer than k placeholders
        repeats the last one; in an input without any, the last token is its own source.
        """
        pairs_of_inputs = []
        for ids, length in zip(inputs, lengths.tolist(), strict=True):
            last = length - 1
            of_block = np.flatnonzero(ids == OF_BLOCK)
            # inputs that were changed by hand may have none
            of_text = np.flatnonzero(ids == OF_TEXT)
            after_text = min(length - len(self.suffix), last)
            sources = [*of_block[1:] - 1, after_text]
            pairs = [
                *zip(of_block, sources, strict=False),
                *zip(of_text, sources, strict=False),
            ]
            pairs_of_inputs.append(pairs if len(of_block) else [(last, last)])
        longest = max(map(len, pairs_of_inputs))
        filled = np.array(
            [[*pairs, *pairs[-1:] * (longest - len(pairs))] for pairs in pairs_of_inputs]
        )
        return filled[:, :, 0], filled[:, :, 1]


#: Start and exit layer by ``published_name``, as published.
KNOWN_LAYERS: dict[str, tuple[int, int]] = {
    "Llama-2-7b-hf": (1, 7),
    "Llama-2-13b-hf": (1, 7),
    "Meta-Llama-3-8B": (1, 3),
    "Qwen2-7B": (1, 6),
    "gemma-2-9b": (1, 6),
}
_EXIT_SHARE = 7 / 32  # exit layer by depth for other models: Llama-2-7B's


class TokenPrepending(Prompt):
    """A template with a placeholder token right before the piece that contains [X] (Fu et al., ACL
    2025), or with placeholders for each block of the text (Hierarchical Token Prepending,
    arXiv 2511.14868).

    Before each layer l with START <= l < EXIT (0-based) the placeholder's state is replaced by that
    of the last token, so that the sentence attends to it in spite of the causal mask. A block has
    two placeholders, one in front of the block and one in front of the text, and both get the
    state of the block's last token. So every token attends to the ends of all blocks. Nothing is
    learned: the placeholders' embeddings are drawn from N(0, 1), as in the published code, but are
    always the same here. The vector is read at the last token; with blocks it is the mean of the
    sentence's own tokens. An intermediate layer is best (published: 27 of 32, or -2).
    """

    def __init__(self, context: BuildContext) -> None:
        backbone = context.backbone
        context.require_causal("prompt 'token-prepending'")
        super().__init__(context)
        layers = context.spec["layers"]
        if layers is None:
            usual = (1, max(2, round(_EXIT_SHARE * backbone.n_layers)))
            layers = Pair(*KNOWN_LAYERS.get(published_name(backbone) or "", usual))
        blocks = context.spec["blocks"]
        suffix = "" if blocks is None else f";{blocks}"
        self.spec = f"token-prepending:{layers}{suffix}:{self.template.text}"
        if isinstance(self.template, PlaceholderTemplate):
            self.shared = self.template.prefix[: self.template.placeholder]
        else:
            self.graph_obstacle = "cuts each text into blocks"
        self._layers = context.range_of(layers, 0)
        self._backbone = backbone

    @classmethod
    def read_template(cls, context: BuildContext) -> Template:
        text = template_text(context.spec["text"], context.backbone.name)
        tokenizer = context.backbone.tokenizer
        blocks = context.spec["blocks"]
        if blocks is None:
            return PlaceholderTemplate(text, tokenizer)
        return BlockTemplate(text, tokenizer, None if blocks == "sentences" else int(blocks))

    def attach(self, batch: Batch) -> Batch:
        if isinstance(self.template, BlockTemplate):
            return self._attach_blocks(batch, self.template)
        assert isinstance(self.template, PlaceholderTemplate)
        shape, device = (len(batch.ids), 1), batch.ids.device
        positions = torch.full(shape, self.template.placeholder, device=device)
        prepending = Prepending(positions, (batch.lengths - 1).unsqueeze(1), self._layers)
        soft = SoftTokens(self._embeddings[:1], positions)
        return replace(batch, soft=soft, prepending=prepending)

    def _attach_blocks(self, batch: Batch, template: BlockTemplate) -> Batch:
        """Return the batch with padding in the places of the placeholders, and their vectors."""
        on_host = batch.host_ids()
        positions_on_host, sources = template.placeholders(on_host, batch.host_lengths())
        pad = self._backbone.tokenizer.pad
        device = batch.ids.device
        positions = to_device(positions_on_host, device)
        ids = batch.ids.gather(1, positions)
        # an input without placeholders keeps the vector of its last token
        word_vectors = self._backbone.word_embeddings[ids.clamp(min=0)].float()
        placeholder_vectors = self._embeddings[(OF_BLOCK - ids).clamp(min=0)]
        vectors = torch.where(ids.unsqueeze(2) < 0, placeholder_vectors, word_vectors)
        return replace(
            batch,
            ids=batch.ids.masked_fill(batch.ids < 0, pad),
            ids_on_host=np.where(on_host < 0, pad, on_host),
            soft=SoftTokens(vectors, positions),
            prepending=Prepending(positions, to_device(sources, device), self._layers),
        )

    @functools.cached_property
    def _embeddings(self) -> Tensor:
        """(2, e), in the order of ``OF_BLOCK`` and ``OF_TEXT``; the first is also the vector of a
        single placeholder.
        """
        generator = torch.Generator().manual_seed(0)
        width = self._backbone.word_embeddings.size(1)
        drawn = [torch.randn(1, width, generator=generator) for _ in range(2)]
        return torch.cat(drawn).to(self._backbone.device)
