"""The encoder that the tests of servers share."""

import pytest

from promptcli.encoder.encoder import TorchEncoder
from promptcli.recipe import Recipe


@pytest.fixture(scope="package")
def encoder(tiny_backbone):
    """The average of a tiny backbone's last layer."""
    backbone = tiny_backbone("bert")
    return TorchEncoder(Recipe(backbone=backbone.name, pooling="last/avg"), backbone, {})
