"""The clients that people have, against a server of its own process: what they get is what
``encode`` gives.

pip install openai langchain-openai llama-index-embeddings-openai-like
python benchmarks/serve_clients.py
"""

import asyncio
import importlib.metadata
import os
import re
import subprocess
import sys

import numpy as np

import promptcli as pc
from promptcli.data.demo import SENTENCES_FILE

TEXTS = [
    *SENTENCES_FILE.read_text(encoding="utf-8").splitlines()[:145],
    "",
    "ein kleines Boot",
    "cat " * 600,
]
KEY = "a-key"


def openai_client(url: str) -> np.ndarray:
    """Floats, base64, the asynchronous client, and every refusal as the client's own exception."""
    import openai

    client = openai.OpenAI(base_url=url, api_key=KEY, max_retries=0)
    made = client.embeddings.create(model="mini", input=TEXTS)
    floats = client.embeddings.create(model="mini", input=TEXTS, encoding_format="float")
    assert np.array_equal(vectors_of(made), vectors_of(floats).astype(np.float32))
    assert [model.id for model in client.models.list()] == ["mini"]
    for error, request in (
        (openai.BadRequestError, {"model": "mini", "input": [1, 2, 3]}),
        (openai.BadRequestError, {"model": "mini", "input": "x", "dimensions": 3}),
        (openai.NotFoundError, {"model": "maxi", "input": "x"}),
        (openai.APIStatusError, {"model": "mini", "input": "x" * (10 << 20)}),
    ):
        try:
            client.embeddings.create(**request)
        except error as refused:
            assert refused.body and refused.body["message"]
        else:
            raise AssertionError(request)
    try:
        client.with_options(api_key="another").models.list()
    except openai.AuthenticationError:
        pass
    else:
        raise AssertionError("a wrong key was taken")

    async def together() -> list[np.ndarray]:
        async with openai.AsyncOpenAI(base_url=url, api_key=KEY) as waiting:
            asked = [
                waiting.embeddings.create(model="mini", input=text or " ") for text in TEXTS[:40]
            ]
            return [vectors_of(one)[0] for one in await asyncio.gather(*asked)]

    assert np.abs(np.stack(asyncio.run(together())) - vectors_of(made)[:40]).max() < 1e-5
    return vectors_of(made)


def langchain_client(url: str) -> np.ndarray:
    """LangChain, told to send text."""
    from langchain_openai import OpenAIEmbeddings

    client = OpenAIEmbeddings(
        model="mini", base_url=url, api_key=KEY, check_embedding_ctx_length=False, chunk_size=50
    )
    one, many = client.embed_query(TEXTS[0]), client.embed_documents(TEXTS)
    assert np.abs(np.array(one) - many[0]).max() < 1e-5
    return np.array(many)


def llama_index_client(url: str) -> np.ndarray:
    """LlamaIndex, which sends batches of its own size."""
    from llama_index.embeddings.openai_like import OpenAILikeEmbedding

    client = OpenAILikeEmbedding(model_name="mini", api_base=url, api_key=KEY, embed_batch_size=32)
    return np.array(client.get_text_embedding_batch([text or " " for text in TEXTS]))


def vectors_of(made) -> np.ndarray:
    return np.array([row.embedding for row in made.data])


CLIENTS = {"openai": openai_client, "langchain-openai": langchain_client,
           "llama-index-embeddings-openai-like": llama_index_client}  # fmt: skip


def main():
    wanted = pc.load("mini").encode(TEXTS)
    command = [
        sys.executable,
        "-m",
        "promptcli",
        "serve",
        "--model",
        "mini",
        "--port",
        "0",
        "--dtype",
        "float32",
        "--offline",
    ]
    environment = os.environ | {"PROMPTCLI_API_KEY": KEY}
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as server:
        address = re.search(r"http://\S+", next(server.stderr))[0]
        for name, client in CLIENTS.items():
            try:
                version = importlib.metadata.version(name)
            except importlib.metadata.PackageNotFoundError:
                print(f"{name}: not installed, left out")
                continue
            print(
                f"{name} {version}: largest difference to encode"
                f" {np.abs(client(address + '/v1') - wanted).max():.1e}"
            )
        server.terminate()
        assert server.wait() == 0, server.stderr.read()


if __name__ == "__main__":
    main()
