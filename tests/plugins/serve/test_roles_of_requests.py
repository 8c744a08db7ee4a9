"""A model's prompts for queries and documents are used for the texts of requests."""

import numpy as np
import pytest

import promptcli as pc
from promptcli.models.parity import lowest_cosine
from tests.published_folders import write_folder
from tests.role_prompts import PROMPTS, vectors_behind
from tests.tiny import SENTENCES


def test_a_server_puts_the_prompt_of_a_role_in_front(bert_folder, tmp_path):
    pytest.importorskip("starlette", reason="serve needs starlette: pip install '.[serve]'")
    from starlette.testclient import TestClient

    from promptcli.plugins.serve.app import make_app
    from promptcli.plugins.serve.service import Service

    folder = write_folder(tmp_path, bert_folder, prompts=PROMPTS)
    encoder = pc.load(folder, device="cpu", dtype="float32")
    with TestClient(make_app(Service({"m": encoder}, {})), base_url="http://127.0.0.1") as client:
        for given, prompt in (
            (None, ""),
            ("query", "two dogs : "),
            ("passage", "flowers : "),
            ("STS", "a man : "),
        ):
            body = {"model": "m", "input": SENTENCES, "input_type": given}
            rows = client.post("/v1/embeddings", json=body).json()["data"]
            assert (
                lowest_cosine(
                    np.array([row["embedding"] for row in rows]), vectors_behind(folder, prompt)
                )
                >= 0.9999
            )
