"""Golden values from the papers' formulas, computed the plain way: one sentence, eager attention,
float32, loops.
"""
