"""The pictures of analyses."""

import numpy as np
import pytest

from promptcli.plugins.analyze import token_bias
from promptcli.plugins.analyze.token_bias import TokenBias
from tests.kept_figures import keep_figures


@pytest.fixture
def seen(monkeypatch):
    """The figures that are drawn, as matplotlib has them."""
    return keep_figures(monkeypatch, token_bias.pictures)


def test_tokens_that_never_occur_have_no_colour_of_the_scale(tmp_path, seen):
    points = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    counts = np.array([0, 1, 10, 1000])
    flags = np.array([True, False, True, False])
    bias = TokenBias((0.2, 0.1), [], points, counts, flags, flags)
    bias.draw(tmp_path / "bias.png", "tiny")
    panel = seen[0].axes[0]
    never, scale = panel.collections
    assert never.get_offsets().tolist() == [[0.0, 0.0]]
    assert never.get_facecolor().tolist() == [[1.0, 1.0, 1.0, 1.0]]  # no colour of cividis
    assert never.get_edgecolor().tolist() == [[0.0, 0.0, 0.0, 1.0]]
    assert scale.get_array().tolist() == [1, 10, 1000]
