"""SentEval's classifier alone: one fit after another with PyTorch's own layer, loss and optimisers
(METHODS 0.5).
"""

import copy

import numpy as np
import torch

OPTIMIZERS = {"adam": torch.optim.Adam, "rmsprop": torch.optim.RMSprop}


def plain_fit(features, labels, held_out, decay, training, classes, seed):
    """Return the best layer and its accuracy on ``held_out`` (features and labels, or a share of
    the training data).
    """
    generator = np.random.RandomState(seed)
    torch.manual_seed(seed)
    layer = torch.nn.Linear(features.shape[1], classes)
    optimizer = OPTIMIZERS[training.optimizer](
        layer.parameters(), lr=training.learning_rate, weight_decay=decay
    )
    if isinstance(held_out, float):
        drawn = generator.permutation(len(features))
        count = int(held_out * len(features))
        held_out = features[drawn[:count]], labels[drawn[:count]]
        features, labels = features[drawn[count:]], labels[drawn[count:]]
    inputs, targets = torch.tensor(features), torch.tensor(labels)
    best, best_layer, futile, passes = -1.0, None, 0, 0
    while passes <= 200:
        for _ in range(training.epoch_size):
            drawn = generator.permutation(len(inputs))
            for start in range(0, len(inputs), training.batch):
                rows = drawn[start : start + training.batch]
                loss = torch.nn.functional.cross_entropy(layer(inputs[rows]), targets[rows])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        passes += training.epoch_size
        reached = plain_accuracy(layer, *held_out)
        if reached > best:
            best, best_layer = reached, copy.deepcopy(layer)
        else:
            if futile >= training.tenacity:
                break
            futile += 1
    return best_layer, best


def plain_accuracy(layer, features, labels):
    with torch.no_grad():
        return float((layer(torch.tensor(features)).argmax(1).numpy() == labels).mean())


def plain_choice(features, labels, folds, training, classes, seed):
    """Return the weight decay that is best over folds, with its mean accuracy x 100."""
    scores = []
    for decay in (1e-5, 1e-4, 1e-3, 1e-2):
        reached = [
            plain_fit(
                features[left],
                labels[left],
                (features[out], labels[out]),
                decay,
                training,
                classes,
                seed,
            )[1]
            for left, out in folds(labels)
        ]
        scores.append(round(100 * np.mean(reached), 2))
    return (1e-5, 1e-4, 1e-3, 1e-2)[int(np.argmax(scores))], max(scores)


def plain_nested(features, labels, folds, training, classes, seed):
    """Return test and dev accuracy x 100 of nested cross-validation."""
    tests, devs = [], []
    for left, out in folds(labels):
        decay, dev = plain_choice(features[left], labels[left], folds, training, classes, seed)
        layer, _ = plain_fit(features[left], labels[left], 0.05, decay, training, classes, seed)
        tests.append(round(100 * plain_accuracy(layer, features[out], labels[out]), 2))
        devs.append(dev)
    return round(float(np.mean(tests)), 2), round(float(np.mean(devs)), 2)


def plain_cross_validated(train, test, folds, training, classes, seed):
    """Return test and dev accuracy x 100: the weight decay by folds, then one fit with 5% held
    out.
    """
    decay, dev = plain_choice(*train, folds, training, classes, seed)
    layer, _ = plain_fit(*train, 0.05, decay, training, classes, seed)
    return round(100 * plain_accuracy(layer, *test), 2), dev


def plain_official(train, dev, test, training, classes, seed):
    """Return test and dev accuracy x 100: the weight decay by the dev split."""
    fits = [
        plain_fit(*train, dev, decay, training, classes, seed) for decay in (1e-5, 1e-4, 1e-3, 1e-2)
    ]
    scores = [round(100 * reached, 2) for _, reached in fits]
    layer = fits[int(np.argmax(scores))][0]
    return round(100 * plain_accuracy(layer, *test), 2), max(scores)
