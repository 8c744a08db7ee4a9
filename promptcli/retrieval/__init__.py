"""Sentence indexes, search by meaning and by words, and near-duplicates.

``SentenceIndex`` is the only interface to an index; ``search`` needs no stored index. Only this
package imports FAISS.
"""
