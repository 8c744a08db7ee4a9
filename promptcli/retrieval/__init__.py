"""Indexes of sentences, search by meaning and by words, and near-duplicates.

``SentenceIndex`` is the one interface of an index; ``search`` needs none that is kept. This is the
only package that imports FAISS.
"""
