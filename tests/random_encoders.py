"""Learned and fitted tensors of any recipe, random: what an entry holds after training or
fitting.
"""

import torch

from promptcli.encoder.components import BuildContext
from promptcli.encoder.encoder import build_encoder
from promptcli.encoder.pooling.tfidf import TENSOR as IDF
from promptcli.encoder.prompts import initial_tensors
from promptcli.encoder.transforms.flow import Glow
from promptcli.encoder.transforms.heads import start_projection


def random_numbers(recipe, backbone):
    """Return random numbers for every part of a recipe that is learned or fitted, by name."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape):
        return torch.randn(*shape, generator=generator)

    started, width = initial_tensors(recipe.parts.prompt, backbone, generator), backbone.width
    numbers = {name: own + 0.3 * normal(*own.shape) for name, own in started.items()}
    if recipe.pooling.endswith("/tfidf"):
        numbers[IDF] = normal(len(backbone.word_embeddings)).abs()
    for transform in recipe.parts.transforms:
        name, argument = transform.name, transform.argument
        if name == "whitening":
            numbers |= {
                "whitening.mean": normal(width),
                "whitening.matrix": 3 * normal(width, width),
            }
        if name == "projection":
            context = BuildContext(transform, backbone, {})
            head = start_projection(argument, context, generator)
            numbers |= {name: own + 0.2 * normal(*own.shape) for name, own in head.items()}
        if name == "flow":
            glow = Glow(width)
            glow.start(normal(64, width), generator)
            moved = {
                name: own + 0.1 * normal(*own.shape) for name, own in glow.state_dict().items()
            }
            glow.load_state_dict(moved)
            numbers |= glow.named_tensors()
    return numbers


def random_encoder(recipe, backbone):
    """Return the encoder of a recipe with random numbers wherever some are learned."""
    return build_encoder(recipe, backbone=backbone, tensors=random_numbers(recipe, backbone))
