"""Losses of the training methods as plain loops over lists of numbers, written from the papers' formulas."""

import math


def cosine(one, other):
    """Return the cosine of two vectors."""
    product = sum(a * b for a, b in zip(one, other, strict=True))
    return product / math.sqrt(sum(a * a for a in one) * sum(b * b for b in other))


def softmax_loss(rows, weight, bias, classes):
    """Return the mean cross-entropy of softmax(W x + b)."""
    total = 0.0
    for row, wanted in zip(rows, classes, strict=True):
        scores = [sum(w * x for w, x in zip(line, row, strict=True)) + b for line, b in zip(weight, bias, strict=True)]
        total += math.log(sum(map(math.exp, scores))) - scores[wanted]
    return total / len(rows)


def extended_infonce(first, second, negative, temperature):
    """Return CoT-BERT's loss: 3n columns, z1 with z2, z1 with z3, z2 with z3."""
    total = 0.0
    for i in range(len(first)):
        scores = [cosine(first[i], other) / temperature for other in second]
        scores += [cosine(first[i], other) / temperature for other in negative]
        scores += [cosine(second[i], other) / temperature for other in negative]
        total += math.log(sum(map(math.exp, scores))) - scores[i]
    return total / len(first)


def nt_xent(first, second, temperature, same=None):
    """Return NT-Xent over 2n vectors, both directions added; ``same[i][j]``: j is no negative of i."""
    n, total = len(first), 0.0
    for one, two in ((first, second), (second, first)):
        for i in range(n):
            positive = math.exp(cosine(one[i], two[i]) / temperature)
            below = positive
            for j in range(n):
                if j != i and not (same and same[i][j]):
                    below += math.exp(cosine(one[i], two[j]) / temperature)
                    below += math.exp(cosine(one[i], one[j]) / temperature)
            total -= math.log(positive / below) / n
    return total


def jensen_shannon(sentences):
    """Return IS-BERT's loss of sentences as lists of their tokens' local features."""
    n, tokens = len(sentences), sum(map(len, sentences))
    loss = 0.0
    for i, own in enumerate(sentences):
        vector = [sum(values) / len(own) for values in zip(*own, strict=True)]
        for j, other in enumerate(sentences):
            for features in other:
                score = sum(a * b for a, b in zip(vector, features, strict=True))
                softplus = math.log(1 + math.exp(-score))
                if i == j:
                    loss -= (math.log(2) - softplus) / tokens
                else:
                    loss += (softplus + score - math.log(2)) / (tokens * (n - 1))
    return loss


def convolutions(states, numbers, activation, channels):
    """Return the first channels of kernels 1, 3 and 5 at every token, padding of zeros at both ends."""
    width = len(states[0])
    found = []
    for t in range(len(states)):
        row = []
        for size in (1, 3, 5):
            weight, bias = numbers[f"{size}.weight"].tolist(), numbers[f"{size}.bias"].tolist()
            for channel in range(channels):
                value = bias[channel]
                for step in range(size):
                    place = t + step - size // 2
                    if 0 <= place < len(states):
                        value += sum(weight[channel][k][step] * states[place][k] for k in range(width))
                row.append(max(value, 0.0) if activation == "relu" else value)
        found.append(row)
    return found


def bag_of_words(lines, line, logits, function_pieces, is_content):
    """Return the cross-entropy of a template's mask against the words of its sentence.

    ``lines`` are all lines as ids; ``logits`` are the mask's. Each distinct content piece counts by its information
    ln(lines / (lines with it + 1)) over the sum of these; the ``function_pieces`` pieces of the most lines are none.
    None where the line has no content.
    """
    held = {}
    for ids in lines:
        for piece in set(ids):
            held[piece] = held.get(piece, 0) + 1
    frequent = sorted(held, key=lambda piece: (-held[piece], piece))[:function_pieces]
    told = {}
    for piece in set(line):
        if is_content(piece) and piece not in frequent:
            told[piece] = max(0.0, math.log(len(lines) / (held[piece] + 1)))
    if not any(told.values()):
        return None
    norm = math.log(sum(math.exp(value) for value in logits))
    return -sum(weight / sum(told.values()) * (logits[piece] - norm) for piece, weight in told.items())


def vectors_distance(student, teacher):
    """Return the mean of 1 - cos(h_i, t_i)."""
    return sum(1 - cosine(h, t) for h, t in zip(student, teacher, strict=True)) / len(student)


def similarities_distance(student, teacher):
    """Return the mean of (cos(h_i, h_j) - cos(t_i, t_j))^2 over all pairs i != j."""
    pairs = [(i, j) for i in range(len(student)) for j in range(len(student)) if i != j]
    return sum((cosine(student[i], student[j]) - cosine(teacher[i], teacher[j])) ** 2 for i, j in pairs) / len(pairs)


def guided_infonce(first, second, first_of_teacher, second_of_teacher, temperature):
    """Return InfoNCE without the negatives that the teacher finds nearer to a sentence than its positive."""
    total = 0.0
    for i, one in enumerate(first):
        limit = cosine(first_of_teacher[i], second_of_teacher[i])
        scores = [
            math.exp(cosine(one, other) / temperature)
            for j, other in enumerate(second)
            if j == i or cosine(first_of_teacher[i], second_of_teacher[j]) <= limit
        ]
        total -= math.log(math.exp(cosine(one, second[i]) / temperature) / sum(scores))
    return total / len(first)
