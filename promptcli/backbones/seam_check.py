"""Does the attention seam compute what the model computes? Compared with transformers' eager path on a probe input."""

import threading
from typing import Any

import torch
from torch import Tensor

from promptcli.backbones.seam import NAME, SeamCall

#: Largest difference of the two paths, relative to the largest number: rounding is far below, another attention above.
_TOLERANCE = {torch.float32: 1e-3}
_TOLERANCE_ELSE = 5e-2
_LENGTHS = (24, 17)  # tokens of the probe's two rows, so that one is padded
_lock = threading.Lock()  # the model's own path is switched on for a moment


def seam_fault(model: Any, n_layers: int) -> str | None:
    """Return why a model may not be used through the seam, or None.

    Whatever our attention function does not know makes another output than the model's own (causal attention, grouped
    queries, windows, capped scores and scalings it knows); a family that never calls it makes the same one, but then
    nothing is counted.

    Args:
        model: Of transformers, loaded with the seam's attention, on any device.
        n_layers: How often a pass must come by the seam.
    """
    positions = getattr(model.config, "max_position_embeddings", None) or max(_LENGTHS)
    lengths = [min(length, positions - 2) for length in _LENGTHS]
    device = model.get_input_embeddings().weight.device
    ids = torch.randint(model.config.vocab_size, (2, lengths[0]), generator=torch.Generator().manual_seed(0)).to(device)
    real = torch.arange(lengths[0], device=device) < torch.tensor(lengths, device=device).unsqueeze(1)

    def run(**options: Any) -> Tensor:
        padded = model(input_ids=ids, attention_mask=real.long(), **options).last_hidden_state[real]
        if "seam" in options:
            options["seam"] = SeamCall()
        whole = model(input_ids=ids, **options).last_hidden_state  # a mask that is not needed is left out: causal shows
        return torch.cat([padded, whole.flatten(0, 1)])

    call = SeamCall()
    training = model.training
    with _lock, torch.inference_mode():
        model.eval()
        try:
            ours = run(seam=call)
            model.set_attn_implementation("eager")
            own = run()
        except (RuntimeError, TypeError, ValueError) as error:  # shapes that do not fit: grouped queries
            return f"it fails there ({str(error).splitlines()[0][:80]})"
        finally:
            model.set_attn_implementation(NAME)
            model.train(training)
    if call.calls != n_layers:
        return "its layers do not call it"
    difference = float((ours - own).abs().max() / own.abs().max())
    if difference > _TOLERANCE.get(ours.dtype, _TOLERANCE_ELSE):
        return f"its own attention differs by {difference:.2g} (it is of a kind that the seam does not know)"
    return None
