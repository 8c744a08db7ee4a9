"""How often pairs of sentences exceed a cosine, and what 2,000 of them say: docs/search.md.

    python benchmarks/rarity.py docs/pictures/rarity.png

Of the demo sentences, by two models: the share of 200,000 other pairs with at least a cosine, and
the share that an index states, with the number of pairs that it has seen. It prints the true shares
where the index states 90, 99 and 99.9%.
"""

import sys

import matplotlib.pyplot as plt
import numpy as np
from promptcli.evaluation.rarity import ROWS, Rarity

import promptcli
from promptcli.data.demo import SENTENCES_FILE
from promptcli.data.vectors.precision import unit

MODELS = ("mini", "mini-static")
FRESH = 200_000
STATED = (90, 99, 99.9)


def main(file: str) -> None:
    """Draw the shares of both models side by side."""
    lines = dict.fromkeys(SENTENCES_FILE.read_text(encoding="utf-8").splitlines())
    figure, panels = plt.subplots(1, len(MODELS), figsize=(9, 3.6), sharey=True)
    for panel, name in zip(panels, MODELS, strict=True):
        units = unit(promptcli.load(name).encode(list(lines)))
        generator = np.random.default_rng(7)
        rarity = Rarity.of_rows(units[generator.permutation(len(units))[:ROWS]])
        first, second = generator.integers(0, len(units), (2, FRESH))
        apart = first != second
        fresh = np.sort(np.einsum("nd,nd->n", units[first[apart]], units[second[apart]]))
        grid = np.linspace(0, 0.8, 801)
        true = 1 - np.searchsorted(fresh, grid) / len(fresh)
        stated = np.maximum(rarity.share_above(grid), 1e-4)
        panel.semilogy(grid, true, color="0.6", linewidth=4, label=f"{FRESH:,} other pairs")
        panel.semilogy(grid, stated, color="C0", label="stated by 2,000 pairs")
        panel.axvline(rarity.cosines[-1], color="0.4", linestyle=":", label="the closest of 2,000")
        panel.set(title=name, xlabel="cosine", ylim=(5e-5, 1.2))
        for percent in STATED:
            at = int(np.argmax(stated <= 1 - percent / 100))
            print(f"{name}: stated {percent}% at {grid[at]:.3f}, true {100 * (1 - true[at]):.2f}%")
    panels[0].set_ylabel("share of pairs at least as close")
    panels[0].legend(frameon=False, fontsize=8)
    figure.tight_layout()
    figure.savefig(file, dpi=110)


if __name__ == "__main__":
    main(sys.argv[1])
