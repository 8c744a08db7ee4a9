"""BERT-flow from its formulas, one vector and one channel at a time, and backwards.

Slow on purpose.
"""

import math


def actnorm(x, numbers, name):
    """y_c = (x_c + b_c) exp(3 s_c)."""
    bias, log_scale = numbers[f"{name}.bias"], numbers[f"{name}.log_scale"]
    return [
        (value + float(b)) * math.exp(3 * float(s))
        for value, b, s in zip(x, bias, log_scale, strict=True)
    ]


def actnorm_back(y, numbers, name):
    bias, log_scale = numbers[f"{name}.bias"], numbers[f"{name}.log_scale"]
    return [
        value / math.exp(3 * float(s)) - float(b)
        for value, b, s in zip(y, bias, log_scale, strict=True)
    ]


def dense(x, matrix):
    return [
        sum(float(weight) * value for weight, value in zip(row, x, strict=True)) for row in matrix
    ]


def shift(kept, numbers, name):
    """m(x1): dense, actnorm, ReLU, twice; then dense with a bias, times exp(3 s)."""
    hidden = [
        max(value, 0.0)
        for value in actnorm(dense(kept, numbers[f"{name}.first"]), numbers, f"{name}.first_norm")
    ]
    hidden = dense(hidden, numbers[f"{name}.second"])
    hidden = [max(value, 0.0) for value in actnorm(hidden, numbers, f"{name}.second_norm")]
    last = dense(hidden, numbers[f"{name}.last"])
    bias, log_scale = numbers[f"{name}.last_bias"], numbers[f"{name}.last_log_scale"]
    return [
        (value + float(b)) * math.exp(3 * float(s))
        for value, b, s in zip(last, bias, log_scale, strict=True)
    ]


def forward(x, numbers):
    """z = (half done after level 1, half done after level 2, top)."""
    done, x = [], list(x)
    for level in range(3):
        for step in range(3):
            name = f"levels.{level}.{step}"
            x = actnorm(x, numbers, f"{name}.norm")[::-1]
            half = len(x) // 2
            moved = shift(x[:half], numbers, f"{name}.coupling")
            x = x[:half] + [value + other for value, other in zip(x[half:], moved, strict=True)]
        if level < 2:
            half = len(x) // 2
            done, x = done + x[half:], x[:half]
    return done + x


def backward(z, numbers):
    """The x of a z."""
    d, z = len(z), list(z)
    halves, x = [z[: d // 2], z[d // 2 : d // 2 + d // 4]], z[d // 2 + d // 4 :]
    for level in (2, 1, 0):
        if level < 2:
            x = x + halves[level]
        for step in (2, 1, 0):
            name = f"levels.{level}.{step}"
            half = len(x) // 2
            moved = shift(x[:half], numbers, f"{name}.coupling")
            x = x[:half] + [value - other for value, other in zip(x[half:], moved, strict=True)]
            x = actnorm_back(x[::-1], numbers, f"{name}.norm")
    return x
