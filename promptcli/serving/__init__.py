"""A server of embeddings and search over HTTP, and its page.

The only room that knows Starlette and uvicorn.
"""
