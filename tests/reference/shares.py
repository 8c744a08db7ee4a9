"""What each word adds to a score, as plain loops: of BM25, and of the cosine of two means."""

import math


def bm25_shares(texts, row, query, stem, *, k1, b, as_written):
    """Return by word of the query its BM25 (Lucene's) in a row of texts, all lists of words; and
    the share ``as_written`` of its rarity if the row has it as it is written.
    """
    stems = [[stem(word) for word in text] for text in texts]
    mean = sum(len(text) for text in texts) / len(texts)
    length = k1 * (1 - b + b * len(texts[row]) / mean)
    shares = {}
    for word in query:
        count = stems[row].count(stem(word))
        if count:
            having = sum(1 for text in stems if stem(word) in text)
            rarity = math.log(1 + (len(texts) - having + 0.5) / (having + 0.5))
            if word not in shares:
                shares[word] = as_written * rarity if word in texts[row] else 0.0
            shares[word] += rarity * count / (count + length)
    return shares


def cosine_shares(query, hit):
    """Return by word of the hit what it adds to the cosine of two means of vectors.

    Both are lists of words with their vectors.
    """
    width = len(query[0][1])
    asked = [sum(vector[i] for _, vector in query) / len(query) for i in range(width)]
    answer = [sum(vector[i] for _, vector in hit) / len(hit) for i in range(width)]
    lengths = math.sqrt(sum(x * x for x in asked)) * math.sqrt(sum(x * x for x in answer))
    shares = {}
    for word, vector in hit:
        product = sum(a * x for a, x in zip(asked, vector, strict=True))
        shares[word] = shares.get(word, 0.0) + product / (len(hit) * lengths)
    return shares
