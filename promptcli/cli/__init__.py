"""The entrance: parse, call, print. Typer and Rich live here, and only here."""
