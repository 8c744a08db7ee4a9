"""Losses of the training methods as plain loops over lists of numbers, written from the papers'
formulas.
"""

import math


def cosine(one, other):
    """Return the cosine of two vectors."""
    product = sum(a * b for a, b in zip(one, other, strict=True))
    return product / math.sqrt(sum(a * a for a in one) * sum(b * b for b in other))


def softmax_loss(rows, weight, bias, classes):
    """Return the mean cross-entropy of softmax(W x + b)."""
    total = 0.0
    for row, wanted in zip(rows, classes, strict=True):
        scores = [
            sum(w * x for w, x in zip(line, row, strict=True)) + b
            for line, b in zip(weight, bias, strict=True)
        ]
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


def infonce(first, second, hard, temperature, excluded, excluded_hard):
    """Return InfoNCE over the positives of a batch and its hard negatives, however many a row has.

    ``hard`` has a list of vectors for each row. ``excluded[i][j]``: the positive of row j is no
    negative of row i; ``excluded_hard[i][j][k]`` says so of the k-th hard negative of row j.
    """
    total = 0.0
    for i in range(len(first)):
        own = math.exp(cosine(first[i], second[i]) / temperature)
        below = own
        for j in range(len(second)):
            if j != i and not excluded[i][j]:
                below += math.exp(cosine(first[i], second[j]) / temperature)
            for k, negative in enumerate(hard[j]):
                if not excluded_hard[i][j][k]:
                    below += math.exp(cosine(first[i], negative) / temperature)
        total -= math.log(own / below)
    return total / len(first)


def nt_xent(first, second, temperature, same=None):
    """Return NT-Xent over 2n vectors, both directions added.

    ``same[i][j]``: j is no negative of i.
    """
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
    """Return the first channels of kernels 1, 3 and 5 at every token, padding of zeros at both
    ends.
    """
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
                        value += sum(
                            weight[channel][k][step] * states[place][k] for k in range(width)
                        )
                row.append(max(value, 0.0) if activation == "relu" else value)
        found.append(row)
    return found


def bag_of_words(lines, line, logits, function_pieces, is_content):
    """Return the cross-entropy of a template's mask against the words of its sentence.

    ``lines`` are all lines as ids; ``logits`` are the mask's. Each distinct content piece counts by
    its information ln(lines / (lines with it + 1)) over the sum of these; the ``function_pieces``
    pieces of the most lines are none. None where the line has no content.
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
    return -sum(
        weight / sum(told.values()) * (logits[piece] - norm) for piece, weight in told.items()
    )


def vectors_distance(student, teacher):
    """Return the mean of 1 - cos(h_i, t_i)."""
    return sum(1 - cosine(h, t) for h, t in zip(student, teacher, strict=True)) / len(student)


def similarities_distance(student, teacher):
    """Return the mean of (cos(h_i, h_j) - cos(t_i, t_j))^2 over all pairs i != j."""
    pairs = [(i, j) for i in range(len(student)) for j in range(len(student)) if i != j]
    return sum(
        (cosine(student[i], student[j]) - cosine(teacher[i], teacher[j])) ** 2 for i, j in pairs
    ) / len(pairs)


def guided_infonce(first, second, first_of_teacher, second_of_teacher, temperature):
    """Return InfoNCE without the negatives that the teacher finds nearer to a sentence than its
    positive.
    """
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


def cosent(similarities, scores, tau):
    """Return log(1 + sum over pairs i scored above j of exp(tau (s_j - s_i)))."""
    total = 1.0
    for i, score in enumerate(scores):
        for j, other in enumerate(scores):
            if score > other:
                total += math.exp(tau * (similarities[j] - similarities[i]))
    return math.log(total)


def angle(one, other):
    """Return |sum over k of Re and Im of (a + bi) / (c + di) scaled by |w| / |z||, both halves read
    as complex.
    """
    half = len(one) // 2
    z = [complex(one[k], one[half + k]) for k in range(half)]
    w = [complex(other[k], other[half + k]) for k in range(half)]
    z_length, w_length = (math.sqrt(sum(abs(value) ** 2 for value in part)) for part in (z, w))
    total = 0.0
    for k in range(half):
        product = z[k] * w[k].conjugate() / (w_length**2) / (z_length / w_length)
        total += product.real + product.imag
    return abs(total)


def in_batch_negatives(first, second, positives, tau):
    """Return AnglE's in-batch term: each positive sentence's partner among all other sentences,
    over all of them.
    """
    both, n, total = [*first, *second], len(first), 0.0
    for i in range(2 * n):
        if positives[i % n]:
            scores = {j: tau * cosine(both[i], both[j]) for j in range(2 * n) if j != i}
            total += math.log(sum(map(math.exp, scores.values()))) - scores[(i + n) % (2 * n)]
    return total / (2 * n)


def pearson_loss(similarities, scores):
    """Return 1 - r."""
    n = len(scores)
    x_mean, y_mean = sum(similarities) / n, sum(scores) / n
    covariance = sum((x - x_mean) * (y - y_mean) for x, y in zip(similarities, scores, strict=True))
    x_square, y_square = (
        sum((x - x_mean) ** 2 for x in similarities),
        sum((y - y_mean) ** 2 for y in scores),
    )
    return 1 - covariance / math.sqrt(x_square * y_square)


def softmax(values):
    """Return e^v over its sum."""
    total = sum(map(math.exp, values))
    return [math.exp(value) / total for value in values]


def jensen_shannon_of_views(first, second, tau):
    """Return RankCSE's consistency: the mean divergence of the two views' rankings of the batch."""
    n, total = len(first), 0.0
    for i in range(n):
        p = softmax([cosine(first[i], other) / tau for other in second])
        q = softmax([cosine(second[i], other) / tau for other in first])
        for a, b in zip(p, q, strict=True):
            middle = (a + b) / 2
            total += (a * math.log(a / middle) + b * math.log(b / middle)) / 2 / n
    return total


def list_net(first, second, teacher, tau, teacher_tau):
    """Return the mean cross-entropy of top-one probabilities over the other sentences."""
    n, total = len(first), 0.0
    for i in range(n):
        others = [j for j in range(n) if j != i]
        wanted = softmax([cosine(teacher[i], teacher[j]) / teacher_tau for j in others])
        given = softmax([cosine(first[i], second[j]) / tau for j in others])
        total -= sum(q * math.log(p) for q, p in zip(wanted, given, strict=True)) / n
    return total


def list_mle(first, second, teacher, tau):
    """Return the mean over places and sentences of -log of the likelihood of the teacher's
    order.
    """
    n, total = len(first), 0.0
    for i in range(n):
        order = sorted(range(n), key=lambda j: -cosine(teacher[i], teacher[j]))
        scores = [cosine(first[i], second[j]) / tau for j in order]
        for place in range(n):
            total += (math.log(sum(map(math.exp, scores[place:]))) - scores[place]) / (n * n)
    return total


def hard_negatives(first, second, anchors, positives, guide_anchors, guide_positives, margin):
    """Return for each pair the nearest other positive below the margin that the guide does not call
    nearer, or "".
    """
    found = []
    for i, one in enumerate(first):
        own = {second[j] for j in range(len(first)) if first[j] == one} | {one}
        best, chosen = -2.0, ""
        for j, text in enumerate(second):
            near = cosine(anchors[i], positives[j])
            guided = cosine(guide_anchors[i], guide_positives[j])
            if (
                text not in own
                and near <= cosine(anchors[i], positives[i]) - margin
                and guided <= cosine(guide_anchors[i], guide_positives[i])
                and near > best
            ):
                best, chosen = near, text
        found.append(chosen)
    return found


def hinge(first, second, hard, margin, excluded):
    """Return PromCSE's hinge: the positive against the nearest other candidate.

    ``hard`` are the hard negatives of the batch that exist; ``excluded[i][j]`` leaves out candidate
    j, of the positives and then these, for sentence i. Takes numbers or scalar tensors.
    """
    candidates = [*second, *hard]
    total = 0.0
    for i in range(len(first)):
        others = [
            smooth_cosine(first[i], candidate)
            for j, candidate in enumerate(candidates)
            if j != i and not excluded[i][j]
        ]
        value = margin - smooth_cosine(first[i], second[i]) + max(others)
        if value > 0:
            total = total + value
    return total / len(first)


def soft_negative(first, second, soft, alpha, beta):
    """Return SNCSE's bounds: how far D leaves [-beta, -alpha], D = cos(z1, z3) - cos(z1, z2)."""
    total = 0.0
    for one, two, three in zip(first, second, soft, strict=True):
        distance = smooth_cosine(one, three) - smooth_cosine(one, two)
        if distance > -alpha:
            total = total + distance + alpha
        if distance < -beta:
            total = total - distance - beta
    return total / len(first)


def smooth_cosine(one, other):
    """Return the cosine of two vectors of numbers or of scalar tensors."""
    product = sum(a * b for a, b in zip(one, other, strict=True))
    return product / (sum(a * a for a in one) * sum(b * b for b in other)) ** 0.5
