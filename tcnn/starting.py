"""Signal handling while the command starts: SIGINT and SIGTERM end the process at once, without a traceback.

The first module that is loaded, and so it loads next to nothing itself: the imports that follow take a tenth of a
second, and from a cold disk seconds.
"""

import os
import signal
import sys
from collections.abc import Callable

last_deeds: list[Callable[[], None]] = []
"""Called before the process ends at once; nothing in them may wait for what the signal has interrupted."""


def end_while_starting() -> None:
    """Have a signal end the `tcnn` command at once, until it has handlers of its own; other programs keep theirs."""
    script = sys.orig_argv[-len(sys.argv)] if 0 < len(sys.argv) <= len(sys.orig_argv) else ""
    if os.path.basename(script) not in ("tcnn", "tcnn.exe"):  # noqa: PTH119 - pathlib takes as long as all the rest
        return
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
            signal.signal(number, end_at_once)


def end_at_once(number: int, frame: object = None, say: bool = True) -> None:
    """Signal handler: end the process without unwinding; nothing half-written and no hidden cursor is left."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # comes twice or thrice where a group is told; who insists kills
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    for deed in last_deeds:
        try:  # noqa: SIM105 - contextlib takes as long as all the rest
            deed()
        except Exception:  # noqa: S110 - there is nobody left to hear of it
            pass
    try:
        if os.isatty(2):
            os.write(2, b"\r\x1b[K\x1b[?25h")  # a progress bar hides the cursor; what is loaded stands in the line
        if number == signal.SIGINT and say:
            os.write(2, b"interrupted\n")
    except OSError:  # closed
        pass
    os._exit(128 + number)
