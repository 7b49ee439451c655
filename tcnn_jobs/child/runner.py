"""Entry point of a job's process, which alone loads torch: `python -m tcnn_jobs.child.runner DIRECTORY PARENT`."""

import logging
import os
import signal
import sys
import traceback
from pathlib import Path
from types import FrameType

from tcnn.errors import EnvironmentFailure, Stopped, TcnnError, one_line
from tcnn.processes import QuickExit, die_with_parent, keep_freed_memory, let_others_go_first, loading
from tcnn.signals import is_importing
from tcnn_jobs.attempt import Assignment, AttemptDirectory, Outcome, Reporter, public
from tcnn_jobs.model.jobs import Failure, Progress
from tcnn_jobs.retry import error_code

log = logging.getLogger("tcnn.runner")

_asked: list[int] = []
"""SIGTERMs received: requests of the worker to stop."""


def main(directory: Path, parent: int) -> int:
    """Run the assignment in an attempt's directory and write the outcome there; returns the exit code.

    0: done. 75 (`Stopped`): stopped on request, may be resumed. Another error's own code, 1 for an unexpected one.
    `parent` is the worker's process id: this process ends with it.
    """
    die_with_parent(parent=parent)
    let_others_go_first()
    keep_freed_memory()
    signal.signal(signal.SIGTERM, _stop)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the worker, who will say what it means
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    logging.captureWarnings(True)
    os.chdir(directory)  # so that a run's own records name the same relative paths in every attempt
    attempt = AttemptDirectory(Path())
    assignment = attempt.assignment()
    try:
        log.info("job %s, claim %d: %s", assignment.job, assignment.claim, assignment.kind)
        reporter = Reporter(attempt)
        reporter.progress(Progress(phase="starting", percent=0.0))
        with loading():
            from tcnn_jobs.child import tasks  # the heavy part of starting

        result = tasks.run(assignment, attempt, reporter)
        attempt.finish(Outcome(result=result))
        log.info("done")
        return 0
    except Stopped as error:
        log.info("stopped: %s", error)
        return Stopped.exit_code
    except Exception as error:
        if _asked:  # a library that is interrupted in its own code makes an error of its own of it
            log.info("stopped: %s", error)
            return Stopped.exit_code
        return _failed(error, attempt, assignment)


def _failed(error: Exception, attempt: AttemptDirectory, assignment: Assignment) -> int:
    """Write the failure and whether a retry may help as the outcome; returns the exit code."""
    if isinstance(error, TcnnError):
        log.error("%s: %s", type(error).__name__, error)
        failure = Failure(code=error_code(error), message=public(str(error), assignment))
        attempt.finish(Outcome(error=failure, retry=isinstance(error, EnvironmentFailure)))
        return error.exit_code
    traceback.print_exception(error)
    message = f"unexpected {type(error).__name__}: {one_line(error)}; the log has the details"
    attempt.finish(Outcome(error=Failure(code="internal", message=message), retry=True))
    return 1


def _stop(number: int, frame: FrameType | None) -> None:
    """Signal handler: raise `Stopped`. Training has its own, which ends after a step; elsewhere nothing is to save."""
    _asked.append(number)
    if is_importing(frame):  # what is raised there may pass through C++, which aborts the process
        os._exit(Stopped.exit_code)
    raise Stopped("asked to stop")


if __name__ == "__main__":
    leave = QuickExit()
    leave(main(Path(sys.argv[1]), int(sys.argv[2])))
