"""The papers' tables measured again: published figures, how each row is made and each column
measured, results.
"""
