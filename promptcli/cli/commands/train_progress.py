"""What a person sees while runs go on: one bar a run, one line a look. Part of the entrance."""

import contextlib
from typing import TYPE_CHECKING, Self

from promptcli.cli.console import note, progress

if TYPE_CHECKING:
    from promptcli.training.checkpoint import DevScore
    from promptcli.training.run import TrainingRun
    from promptcli.training.training_loop import TrainingCallbacks
    from promptcli.training.trials import Trial


class TrialProgress(contextlib.AbstractContextManager["TrialProgress"]):
    """Shows the runs of one command, one after the other."""

    def __init__(self, run: "TrainingRun", trials: int, *, quiet: bool) -> None:
        self._run, self._trials, self._quiet = run, trials, quiet
        self._bar = contextlib.ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()

    def begin(self, number: int, trial: "Trial") -> "TrainingCallbacks":
        """Begin a run's bar; return what listens to the run."""
        from promptcli.training.training_loop import TrainingCallbacks, steps_of

        self._bar.close()
        settings = self._run.settings.replace(**trial.changes)
        steps, on = steps_of(settings, len(self._run.examples)), self._run.development.label
        advance = self._bar.enter_context(progress(f"train {self._run.method.name}", steps, quiet=self._quiet))
        if self._trials > 1:
            about = ", ".join(f"{name.replace('_', '-')} {value}" for name, value in trial.changes.items())
            note(f"run {number} of {self._trials}: {about}{', ' if about else ''}seed {trial.seed}", quiet=self._quiet)
        done, best = 0, float("-inf")

        def step(taken: int, loss: float) -> None:
            nonlocal done
            advance(taken - done)
            done = taken
            advance.describe(f"loss {loss:.4f}  best {best:.2f}")

        def dev_score(seen: "DevScore") -> None:
            nonlocal best
            best = max(best, seen.value)
            parts = [f"step {seen.step}/{steps}", "" if seen.loss is None else f"loss {seen.loss:.4f}"]
            rate = "" if seen.rate is None else f"{seen.rate:.0f} examples/s"
            parts += [f"{on} {seen.value:.2f}{' *' if seen.best else ''}", rate]
            note("  ".join(part for part in parts if part), quiet=self._quiet)
            if seen.noise and seen.step:
                note(
                    f"the development score is noise: the run has diverged; try a --learning-rate below"
                    f" {settings.learning_rate:g}",
                    quiet=self._quiet,
                )

        return TrainingCallbacks(step, dev_score, lambda message: note(message, quiet=self._quiet))
