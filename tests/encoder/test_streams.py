"""Batches computed several at a time: in order, the same vectors, and nothing left running or changed."""

import numpy as np
import pytest
import torch

from promptcli.encoder.encoder import Encoder
from promptcli.encoder.streams import in_streams
from promptcli.recipe import RECIPES
from tests.making import random_encoder


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_results_come_in_order_and_threads_are_given_back(two_threads):
    seen = []

    def work(number):
        seen.append(torch.get_num_threads())
        return number**2

    assert list(in_streams(work, range(9))) == [(number, number**2) for number in range(9)]
    assert set(seen) == {1} and torch.get_num_threads() == 2
    assert list(in_streams(work, [3], most=8)) == [(3, 9)] and seen[-1] == 2  # one batch has all threads


def test_an_error_ends_it(two_threads):
    def work(number):
        if number == 1:
            raise ValueError("no")
        return number

    with pytest.raises(ValueError, match="no"):
        list(in_streams(work, range(50)))
    assert torch.get_num_threads() == 2


@pytest.mark.parametrize("denoise", ["none", "hidden"])
def test_vectors_are_those_of_one_batch_after_the_other(denoise, two_threads, tiny_backbone, monkeypatch):
    encoder = random_encoder(RECIPES["prompt"].replace(denoise=denoise), tiny_backbone("bert"))
    again = Encoder(encoder.recipe, encoder.backbone, encoder.tensors())
    sentences = [" ".join(["cat"] * (1 + number % 17)) + f" {number}" for number in range(300)]
    progress = []
    together = encoder.encode(sentences, progress=progress.append)
    torch.set_num_threads(1)
    assert np.abs(together - again.encode(sentences)).max() < 1e-6
    assert sum(progress) == 300 and len(progress) > 2
