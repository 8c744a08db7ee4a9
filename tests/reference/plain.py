"""The formulas, one sentence at a time, from the papers: eager attention, float32, Python loops.

Slow on purpose.
"""

import math
from dataclasses import dataclass, field
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, AutoTokenizer


@dataclass(eq=False)
class Plain:
    """One backbone, loaded by transformers alone."""

    folder: Path
    causal: bool = False
    tokenizer: object = field(init=False)
    model: object = field(init=False)
    #: input -> its states and matrices
    _known: dict = field(default_factory=dict)

    def __post_init__(self):
        self.tokenizer = AutoTokenizer.from_pretrained(self.folder)
        kind = AutoModelForCausalLM if self.causal else AutoModelForMaskedLM
        self.model = kind.from_pretrained(self.folder, attn_implementation="eager").eval()

    # -- input

    def ids(self, template, sentence):
        """The filled string, tokenised whole; a causal model's input ends with the string."""
        ids = self.tokenizer(self.filled(template, sentence))["input_ids"]
        return ids[:-1] if self.causal and ids[-1:] == [self.tokenizer.eos_token_id] else ids

    def filled(self, template, sentence):
        mask = self.tokenizer.mask_token or ""
        return template.replace("[MASK]", mask).replace("[X]", sentence)

    # -- the model

    def states(self, ids, positions=None, mask=False):
        """What ``compute`` returns, computed once for each input, of a model as it was loaded."""
        given = (tuple(ids), positions and tuple(positions), mask)
        if given not in self._known:
            self._known[given] = self.compute(ids, positions, mask)
        return self._known[given]

    @torch.no_grad()
    def compute(self, ids, positions=None, mask=False):
        """Hidden states [0..L], each (t, d), and attention matrices [1..L], each (h, t, t).

        A causal model takes positions with gaps for several texts, unless a mask says that all is
        one.
        """
        options = {} if positions is None else {"position_ids": torch.tensor([positions])}
        options |= {"attention_mask": torch.ones(1, len(ids), dtype=torch.long)} if mask else {}
        out = self.model.base_model(
            torch.tensor([ids]), output_hidden_states=True, output_attentions=True, **options
        )
        return [state[0] for state in out.hidden_states], [matrix[0] for matrix in out.attentions]

    def rows(self):
        return self.model.get_input_embeddings().weight.detach()

    def decoder_rows(self):
        return self.model.get_output_embeddings().weight.detach()

    @torch.no_grad()
    def logits(self, vector):
        """The masked-LM head on one hidden state, through the model's own forward pass."""
        base = self.model.get_decoder() if self.causal else self.model.base_model
        original = base.forward

        def stub(*_, **__):
            from transformers.modeling_outputs import (
                BaseModelOutputWithPastAndCrossAttentions as Output,
            )

            return Output(last_hidden_state=vector.reshape(1, 1, -1))

        base.forward = stub
        try:
            return self.model(input_ids=torch.zeros((1, 1), dtype=torch.long)).logits[0, 0]
        finally:
            base.forward = original

    @torch.no_grad()
    def transformed(self, vector):
        """T(h): what reaches the decoder."""
        seen = []
        hook = self.model.get_output_embeddings().register_forward_pre_hook(
            lambda _, given: seen.append(given[0])
        )
        self.logits(vector)
        hook.remove()
        return seen[0][0, 0]

    # -- the mask of a filled template

    def mask_state(self, template, sentence):
        ids = self.ids(template, sentence)
        return self.states(ids)[0][-1][ids.index(self.tokenizer.mask_token_id)]

    def mask_bias(self, template, sentence, offset):
        """h_hat: the template alone.

        What stands behind [X] keeps the position it had behind the sentence.
        """
        empty = self.ids(template.replace(" [X] ", " [X]"), "") if "' [X] '" in template else None
        whole = self.ids(template, sentence)
        left, right = template.split("[X]")
        before = len(self.tokenizer(self.filled(left.rstrip() or left, ""))["input_ids"]) - 1
        after = len(self.tokenizer(self.filled(right, ""))["input_ids"]) - 1
        length = len(whole) - before - after
        assert length > 0 and (empty is None or len(empty) == before + after)
        ids = whole[:before] + whole[before + length :]
        positions = [
            offset + place for place in (*range(before), *range(before + length, len(whole)))
        ]
        return self.states(ids, positions)[0][-1][ids.index(self.tokenizer.mask_token_id)]

    @torch.no_grad()
    def denoised_logits(self, state, bias, place):
        if place == "hidden":
            return self.logits(state - bias)
        if place == "head":
            return self.model.get_output_embeddings()(
                self.transformed(state) - self.transformed(bias)
            )
        return self.logits(state) - self.logits(bias) if place == "logits" else self.logits(state)


#: A template of each kind of tokenizer.
TEMPLATES = {
    "bert": 'This sentence : "[X]" means [MASK] .',
    "roberta": "This sentence : ' [X] ' means[MASK].",
    "electra": "Also called [MASK]. [X]",
    "mpnet": "This sentence : ' [X] ' means[MASK].",
}


def period(sentence):
    return sentence if sentence[-1] in ".?\"'" else sentence + "."


# -- poolings: sums over tokens, written out


def average(states):
    total = torch.zeros(states.size(1))
    for row in states:
        total = total + row
    return total / len(states)


def content(tokenizer, filled, sentence):
    """Places of the tokens that hold a character of the sentence in a filled template."""
    first = filled.index(sentence)
    places = []
    for place, (start, end) in enumerate(
        tokenizer(filled, return_offsets_mapping=True)["offset_mapping"]
    ):
        if start < first + len(sentence) and end > first:
            places.append(place)
    return places


def maximum(states):
    result = []
    for column in range(states.size(1)):
        largest = states[0][column]
        for row in states[1:]:
            if row[column] > largest:
                largest = row[column]
        result.append(largest)
    return torch.stack(result)


def first_last(states):
    return [(first + last) / 2 for first, last in zip(states[0], states[-1], strict=True)]


def ditto(rows, attention, head):
    """sum_i A_ii x_i, Ditto section 2."""
    total = torch.zeros(len(rows[0]))
    for i, row in enumerate(rows):
        total = total + attention[head][i][i] * row
    return total


def slot_attention(rows, attentions, slot, alpha, head=None):
    """Mean of the rows j with s_j > alpha / n, s_j the largest attention of the slot to j.

    ``attentions``: one per layer, or that of the one layer whose ``head`` alone is asked.
    """
    n = len(rows)
    kept = []
    for j in range(n):
        found = []
        for layer in attentions:
            heads = range(len(layer)) if head is None else [head]
            found += [float(layer[number][slot][j]) for number in heads]
        if max(found) > alpha / n:
            kept.append(rows[j])
    return sum(kept) / len(kept) if kept else average(rows)


def tfidf(ids, rows, documents):
    """sum_i tf(i) idf(i) x_i with idf = log2(N / df)."""
    total = torch.zeros(len(rows[0]))
    for token, row in zip(ids, rows, strict=True):
        frequency = sum(token in document for document in documents)
        idf = math.log2(len(documents) / frequency) if frequency else 0.0
        total = total + ids.count(token) * idf * row
    return total


def tfidf_weights(ids, documents):
    """tf(i) idf(i) of each token, the vector over distinct terms scaled to length 1 (gensim's
    defaults).
    """
    holding = {token: sum(token in document for document in documents) for token in ids}
    terms = {
        t: ids.count(t) * math.log2(len(documents) / df) if df else 0.0 for t, df in holding.items()
    }
    length = math.sqrt(sum(term**2 for term in terms.values()))
    return [terms[token] / length for token in ids]


def topk(logits, rows, k):
    """PromptBERT eq. 3."""
    probabilities = logits.softmax(0)
    best = sorted(range(len(probabilities)), key=lambda token: -float(probabilities[token]))[:k]
    mass = sum(float(probabilities[token]) for token in best)
    total = torch.zeros(rows.size(1))
    for token in best:
        total = total + rows[token] * probabilities[token]
    return total / mass


def whiten(vectors):
    """BERT-whitening: mean and W = U diag(s^-1/2) of the covariance (n - 1), by eigenvectors."""
    mean = vectors.mean(0)
    centred = vectors - mean
    covariance = torch.zeros(vectors.size(1), vectors.size(1), dtype=vectors.dtype)
    for row in centred:
        covariance = covariance + torch.outer(row, row)
    values, basis = torch.linalg.eigh(covariance / (len(vectors) - 1))
    order = torch.argsort(values, descending=True)
    return mean, basis[:, order] / values[order].sqrt()


def covariance(vectors):
    """Mean and covariance (n - 1), summed row by row."""
    mean = vectors.mean(0)
    total = torch.zeros(vectors.size(1), vectors.size(1), dtype=vectors.dtype)
    for row in vectors:
        total = total + torch.outer(row - mean, row - mean)
    return mean, total / (len(vectors) - 1)


def by_falling_variance(matrix):
    """Eigenvalues and eigenvectors, one a list item, the largest first."""
    values, basis = torch.linalg.eigh(matrix)
    order = torch.argsort(values, descending=True).tolist()
    return [values[i] for i in order], [basis[:, i] for i in order]


def all_but_the_top(vectors, k):
    """Mu and Viswanath, algorithm 1: every vector less the mean, less its part along each of the
    first k axes.
    """
    mean, matrix = covariance(vectors)
    _, axes = by_falling_variance(matrix)
    made = []
    for row in vectors:
        centred = row - mean
        left = centred.clone()
        for axis in axes[:k]:
            left = left - sum(axis * centred) * axis
        made.append(left)
    return torch.stack(made)


def kept_axes(vectors, matrix, top, bottom, mean):
    """The coordinates of every vector on the axes of a symmetric matrix but the first and last
    ones.
    """
    _, axes = by_falling_variance(matrix)
    return torch.stack(
        [
            torch.stack([sum(axis * (row - mean)) for axis in axes[top : len(axes) - bottom]])
            for row in vectors
        ]
    )


def part_whitened(vectors, exponent):
    """(x - mu) U diag(s^-a)."""
    mean, matrix = covariance(vectors)
    values, axes = by_falling_variance(matrix)
    columns = [axis / value**exponent for value, axis in zip(values, axes, strict=True)]
    return torch.stack(
        [torch.stack([sum(column * (row - mean)) for column in columns]) for row in vectors]
    )
