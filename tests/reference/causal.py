"""Causal models as the published codes run them, one sentence at a time: eager, no padding, nothing
shared.
"""

import contextlib

import torch
from transformers import AttentionInterface


def text_rule(sentence):
    """PromptEOL's, step by step."""
    text = sentence.strip()
    if text and text[-1] not in ".?\"'":
        text += "."
    text = text.replace('"', "'")
    return text[:-1] + "." if text[-1:] == "?" else text


@torch.no_grad()
def token_prepending(reference, ids, place, start, exit_, embedding):
    """States [0..L] with a placeholder of its own embedding, replaced by the last token's state
    before some layers.
    """
    model = reference.model
    rows = model.get_input_embeddings().weight
    own, rows.data[ids[place]] = rows.data[ids[place]].clone(), embedding
    layers = (
        model.get_decoder().h if hasattr(model.get_decoder(), "h") else model.get_decoder().layers
    )
    hooks = []
    for number in range(start, exit_):

        def replace(_, given):
            hidden = given[0].clone()
            hidden[0, place] = hidden[0, -1]
            return (hidden, *given[1:])

        hooks.append(layers[number].register_forward_pre_hook(replace))
    try:
        return reference.compute(ids)[0]
    finally:
        rows.data[ids[place]] = own
        for hook in hooks:
            hook.remove()


@torch.no_grad()
def attention_outputs(reference, ids):
    """What every layer's attention adds to the residual stream, (L, t, d): the attention module's
    own output.
    """
    seen = []

    def see(_, given, output):
        seen.append((output[0] if isinstance(output, tuple) else output)[0])

    hooks = [module.register_forward_hook(see) for module in attention_modules(reference)]
    try:
        reference.compute(ids)
    finally:
        for hook in hooks:
            hook.remove()
    return torch.stack(seen)


def attention_modules(reference):
    decoder = reference.model.get_decoder() if reference.causal else reference.model.base_model
    if hasattr(decoder, "encoder"):
        blocks = [layer.attention for layer in decoder.encoder.layer]
        return [block.attn if hasattr(block, "attn") else block.output.dense for block in blocks]
    if hasattr(decoder, "transformer"):
        return [layer.attention for layer in decoder.transformer.layer]
    layers = decoder.h if hasattr(decoder, "h") else decoder.layers
    return [layer.self_attn if hasattr(layer, "self_attn") else layer.attn for layer in layers]


@contextlib.contextmanager
def contrasted(reference, auxiliary, layer, factor, norm):
    """Inside, the projection of a layer's attention gets C (A - B) at the last token, B of the
    auxiliary ids.
    """
    attention = attention_modules(reference)[layer]
    names = ("o_proj", "c_proj", "out_proj")
    projection = next(getattr(attention, name) for name in names if hasattr(attention, name))
    seen = []
    hook = projection.register_forward_pre_hook(
        lambda _, given: seen.append(given[0].reshape(-1, given[0].size(-1)))
    )
    reference.compute(auxiliary)
    hook.remove()
    other = seen[0][-1]

    def change(_, given):
        mixed = given[0].clone()
        rows = mixed.view(-1, mixed.size(-1))
        a = rows[-1].clone()
        rows[-1] = factor * (a - other) * (a.norm() / (a - other).norm() if norm else 1)
        return (mixed,)

    hook = projection.register_forward_pre_hook(change)
    try:
        yield
    finally:
        hook.remove()


@torch.no_grad()
def kv_embedding(reference, ids, start, exit_, bias):
    """States [0..L] where, from layer START to EXIT - 1, every token also attends to the key and
    value that the last token had in the layer before. Head by head, token by token.
    """
    calls, before = [], []

    def attend(module, query, key, value, attention_mask=None, scaling=None, **_):
        layer = len(calls)
        calls.append(layer)
        scale = query.size(-1) ** -0.5 if scaling is None else scaling
        repeats = query.size(1) // key.size(1)
        mixed = torch.zeros_like(query)
        for head in range(query.size(1)):
            keys, values = key[0, head // repeats], value[0, head // repeats]
            for token in range(query.size(2)):
                asking = query[0, head, token]
                scores = keys[: token + 1] @ asking * scale
                rows = values[: token + 1]
                if start <= layer < exit_:
                    last_keys, last_values = before[-1]
                    own = last_keys[head // repeats] @ asking * scale + bias
                    scores = torch.cat([scores, own[None]])
                    rows = torch.cat([rows, last_values[head // repeats][None]])
                mixed[0, head, token] = scores.softmax(0) @ rows
        before.append((key[0, :, -1].clone(), value[0, :, -1].clone()))
        return mixed.transpose(1, 2).contiguous(), None

    AttentionInterface.register("plain-kv", attend)
    usual = reference.model.config._attn_implementation
    reference.model.set_attn_implementation("plain-kv")
    try:
        return reference.compute(ids)[0]
    finally:
        reference.model.set_attn_implementation(usual)


@torch.no_grad()
def block_prepending(reference, ids, marks, start, exit_, after):
    """States [0..L] with placeholders for blocks, as Hierarchical Token Prepending sets them.

    ``marks`` are the ids in place of the placeholder in front of a block, and of that in front of
    the text, with their embeddings. ``after`` is the place of the first token after the text.
    """
    (of_block, _), (of_text, _) = marks
    blocks = [place for place, token in enumerate(ids) if token == of_block]
    begins = [place for place, token in enumerate(ids) if token == of_text]
    ends = [*(place - 1 for place in blocks[1:]), min(after, len(ids) - 1)]
    model = reference.model
    rows = model.get_input_embeddings().weight
    own = [rows.data[token].clone() for token, _ in marks]
    for token, embedding in marks:
        rows.data[token] = embedding
    decoder = model.get_decoder()
    layers = decoder.h if hasattr(decoder, "h") else decoder.layers
    hooks = []
    for number in range(start, exit_):

        def replace(_, given):
            read = given[0]
            hidden = read.clone()
            for place, end in [*zip(blocks, ends, strict=True), *zip(begins, ends, strict=False)]:
                hidden[0, place] = read[0, end]
            return (hidden, *given[1:])

        hooks.append(layers[number].register_forward_pre_hook(replace))
    try:
        return reference.compute(ids)[0]
    finally:
        for (token, _), row in zip(marks, own, strict=True):
            rows.data[token] = row
        for hook in hooks:
            hook.remove()
