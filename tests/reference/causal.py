"""Causal models as the published codes run them, one sentence at a time: eager, no padding, nothing shared."""

import torch


def text_rule(sentence):
    """PromptEOL's, step by step."""
    text = sentence.strip()
    if text and text[-1] not in ".?\"'":
        text += "."
    text = text.replace('"', "'")
    return text[:-1] + "." if text[-1:] == "?" else text


@torch.no_grad()
def token_prepending(reference, ids, place, start, exit_, embedding):
    """States [0..L] with a placeholder of its own embedding, replaced by the last token's state before some layers."""
    model = reference.model
    rows = model.get_input_embeddings().weight
    own, rows.data[ids[place]] = rows.data[ids[place]].clone(), embedding
    layers = model.get_decoder().h if hasattr(model.get_decoder(), "h") else model.get_decoder().layers
    hooks = []
    for number in range(start, exit_):

        def replace(_, given):
            hidden = given[0].clone()
            hidden[0, place] = hidden[0, -1]
            return (hidden, *given[1:])

        hooks.append(layers[number].register_forward_pre_hook(replace))
    try:
        return reference.states(ids)[0]
    finally:
        rows.data[ids[place]] = own
        for hook in hooks:
            hook.remove()
