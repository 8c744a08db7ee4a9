"""SentEval's classifier alone: one fit after another with PyTorch's own layer, loss and optimisers
(METHODS 0.5).
"""

import copy

import numpy as np
import torch

OPTIMIZERS = {"adam": torch.optim.Adam, "rmsprop": torch.optim.RMSprop}


def plain_fit(features, labels, held_out, decay, training, classes, seed):
    """Return the best layer and its accuracy on ``held_out``, features and labels."""
    generator = np.random.RandomState(seed)
    torch.manual_seed(seed)
    layer = torch.nn.Linear(features.shape[1], classes)
    optimizer = OPTIMIZERS[training.optimizer](
        layer.parameters(), lr=training.learning_rate, weight_decay=decay
    )
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
        with torch.no_grad():
            guesses = layer(torch.tensor(held_out[0])).argmax(dim=1).numpy()
        reached = float(np.mean(guesses == held_out[1]))
        if reached > best:
            best, best_layer = reached, copy.deepcopy(layer)
        else:
            if futile >= training.tenacity:
                break
            futile += 1
    return best_layer, best
