"""A server of embeddings and search over HTTP, and its page; the only room that knows Starlette and uvicorn."""
