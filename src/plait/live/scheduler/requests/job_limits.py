"""How many jobs users and projects have that have not ended, and how many they may have.

A script in a loop must not fill the queue: every job that waits costs time in every decision, and others wait with it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from plait.live.scheduler.errors import Conflict
from plait.live.scheduler.options import Options


class OpenJobs:
    """Counts, kept up to date by the engine."""

    def __init__(self, jobs: Iterable[tuple[str, str]]) -> None:
        """Owner and project of each job there is."""
        self.by_owner: Counter[str] = Counter()
        self.by_project: Counter[str] = Counter()
        for owner, project in jobs:
            self.add(owner, [project])

    def check(self, owner: str, projects: Sequence[str], options: Options) -> None:
        """Raises `Conflict` if jobs in these projects would be too many."""
        self._check("user", owner, self.by_owner[owner], len(projects), options.user_jobs)
        for project, count in Counter(projects).items():
            self._check("project", project, self.by_project[project], count, options.project_jobs)

    @staticmethod
    def _check(what: str, name: str, there: int, more: int, limit: int) -> None:
        if limit and there + more > limit:
            raise Conflict(
                f"{what} {name} has {there} jobs that have not ended, and may have {limit}; wait for some (plait "
                f"wait), cancel some (plait cancel), or let the administrator raise it: plait up --{what}-jobs N"
            )

    def add(self, owner: str, projects: Sequence[str]) -> None:
        """Count new open jobs of `owner`, one a project of the list."""
        self.by_owner[owner] += len(projects)
        self.by_project.update(projects)

    def remove(self, owner: str, project: str) -> None:
        """Count one open job of `owner` and `project` less."""
        for counts, name in ((self.by_owner, owner), (self.by_project, project)):
            counts[name] -= 1
            if not counts[name]:
                del counts[name]
