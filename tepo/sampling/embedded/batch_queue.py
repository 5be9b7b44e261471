"""The queue of the embedded sampler: the jobs of one `add` are a wave, sampled together and with no others.

Which rows run together decides the shapes of their products, and so the last bits of their results. So that the bits of
a response depend on its `add` alone, a wave never takes in rows of another, whatever is queued, finished or aborted.
"""

from collections import deque
from collections.abc import Callable, Collection, Sequence

from tepo.sampling.sampler import GivenUp, Job, Response


class Waves:
    """`tepo.sampling.sampler.Queue`, its waves run in the order of adding, one batch in each `finished`.

    check: raises UserError for jobs that cannot be sampled. run: samples as many of the first jobs as fit together, at
    least one, and gives their groups.
    """

    def __init__(
        self, check: Callable[[Sequence[Job]], None], run: Callable[[Sequence[Job]], Sequence[list[Response]]]
    ):
        self.check, self.run = check, run
        self.waves: deque[list[Job]] = deque()

    def add(self, jobs: Sequence[Job]) -> None:
        """See `Queue.add`. Raises UserError for an empty prompt or a length beyond the model."""
        self.check(jobs)
        if jobs:
            # Longest first: rows side by side are padded to the longest prompt among them.
            self.waves.append(sorted(jobs, key=lambda job: -len(job.prompt)))

    def finished(self, seconds: float | None = None) -> list[tuple[int, list[Response]]]:
        """The groups of the next batch. It runs to its end however few `seconds` are given."""
        if not self.waves:
            return []
        wave = self.waves[0]
        groups = self.run(wave)
        done, rest = wave[: len(groups)], wave[len(groups) :]
        if rest:
            self.waves[0] = rest
        else:
            self.waves.popleft()
        return [(job.number, group) for job, group in zip(done, groups, strict=True)]

    def drop(self, numbers: Collection[int]) -> None:
        """See `Queue.drop`. A wave is dropped only as a whole: a smaller one would be cut into other batches."""
        self.waves = deque(wave for wave in self.waves if not {job.number for job in wave} <= set(numbers))

    def abort(self) -> GivenUp:
        """Drop the waves, and what is left of one that was begun: batches run to their end, so nothing is lost."""
        self.waves.clear()
        return GivenUp(0, 0)
