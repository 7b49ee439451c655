"""A clock that can be set under a benchmark's own processes, and under nobody else's on this machine.

A small library of C is loaded before libc and adds to the time of day a number of seconds that lies in a file. SQLite,
whose clock is this host's, asks there; what nobody can set (`CLOCK_MONOTONIC`) is left as it is, as by a real step.
"""

import shutil
import struct
import subprocess
from pathlib import Path

VARIABLE = "CHAOS_CLOCK"
"""Names the file to the library; without it the time is the host's."""
SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>

static volatile int64_t *shift;
static int (*real_clock)(clockid_t, struct timespec *);

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("CHAOS_CLOCK");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    real_clock = dlsym(RTLD_NEXT, "clock_gettime");
    if (file < 0) return;
    void *found = mmap(NULL, sizeof(int64_t), PROT_READ, MAP_SHARED, file, 0);
    if (found != MAP_FAILED) shift = found;
}

int clock_gettime(clockid_t which, struct timespec *at) {
    if (!real_clock) real_clock = dlsym(RTLD_NEXT, "clock_gettime");
    int wrong = real_clock(which, at);
    if (!wrong && shift && (which == CLOCK_REALTIME || which == CLOCK_REALTIME_COARSE)) at->tv_sec += *shift;
    return wrong;
}

int gettimeofday(struct timeval *restrict at, void *restrict zone) {
    struct timespec now;
    int wrong = clock_gettime(CLOCK_REALTIME, &now);
    (void)zone;
    at->tv_sec = now.tv_sec;
    at->tv_usec = now.tv_nsec / 1000;
    return wrong;
}

time_t time(time_t *at) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at) *at = now.tv_sec;
    return now.tv_sec;
}
"""


class Clock:
    """The library, built in `folder`, and how far its clock is ahead.

    Raises:
        OSError, subprocess.CalledProcessError: where there is no C compiler (see `compiler`), or it fails.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file, library = folder / "shift", folder / "clock.so"
        self.ahead = 0
        self.step(0)
        build = [compiler() or "cc", "-shared", "-fPIC", "-O2", "-x", "c", "-", "-o", str(library), "-ldl"]
        subprocess.run(build, input=SOURCE.encode(), check=True, capture_output=True)
        self.environment = {"LD_PRELOAD": str(library), VARIABLE: str(self._file), "TCNN_JOB_ENVIRONMENT": VARIABLE}

    def step(self, seconds: int) -> None:
        """Set it forward, or back, for all processes that have it."""
        self.ahead += seconds
        if not self._file.exists():
            self._file.write_bytes(bytes(8))
        with self._file.open("r+b") as file:
            file.write(struct.pack("=q", self.ahead))


def compiler() -> str | None:
    """What builds it, if there is one."""
    return shutil.which("cc")
