"""Search by cosine over stored sentence vectors. The only room that imports faiss; knows nothing of encoders.

Nothing is imported here: the folder's manifest is read without loading FAISS.
"""
