"""Search by cosine over stored sentence vectors.

The only room that imports FAISS; nothing is imported here.
"""
