"""The command line: parse, call, print. Only this package imports Typer and Rich."""
