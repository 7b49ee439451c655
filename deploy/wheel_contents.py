"""What `make dist` has built, looked through: every file of the packages is in the wheel, and nothing else.

    python deploy/wheel_contents.py dist

Exit code 0 when wheel and sdist hold what they should, 1 with a line for each fault.
"""

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("tcnn", "tcnn_jobs", "tcnn_api")


def expected() -> set[str]:
    """The packages' files that git knows."""
    listed = subprocess.run(["git", "ls-files", *PACKAGES], cwd=ROOT, check=True, capture_output=True, text=True)
    return set(listed.stdout.split())


def faults(folder: Path) -> list[str]:
    """What is wrong, a line each."""
    wheels, archives = sorted(folder.glob("*.whl")), sorted(folder.glob("*.tar.gz"))
    if len(wheels) != 1 or len(archives) != 1:
        return [f"{folder}: expected one wheel and one sdist, found {len(wheels)} and {len(archives)}"]
    wanted = expected()
    with zipfile.ZipFile(wheels[0]) as wheel:
        held = {name for name in wheel.namelist() if ".dist-info/" not in name}
    with tarfile.open(archives[0]) as archive:
        packed = {name.partition("/")[2] for name in archive.getnames()}
    return [
        *(f"{wheels[0].name}: {name} is missing" for name in sorted(wanted - held)),
        *(f"{wheels[0].name}: {name} should not be there" for name in sorted(held - wanted)),
        *(f"{archives[0].name}: {name} is missing" for name in sorted((wanted | {"LICENSE", "README.md"}) - packed)),
    ]


def main() -> int:
    found = faults(Path(sys.argv[1]))
    for line in found:
        print(line, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
