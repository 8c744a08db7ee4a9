"""Keeps the figures that a module draws, for tests of pictures."""

import contextlib


def keep_figures(monkeypatch, module):
    """Return a list that gets the figures that a module draws, as matplotlib has them.

    Their files are written, too.
    """
    kept = []
    drawing = module.drawing

    @contextlib.contextmanager
    def kept_drawing(*given, **options):
        with drawing(*given, **options) as figure:
            yield figure
            kept.append(figure)

    monkeypatch.setattr(module, "drawing", kept_drawing)
    return kept
