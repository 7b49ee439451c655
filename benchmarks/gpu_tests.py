"""The tests of tests/gpu, a process for each file, side by side: compiling kernels keeps a processor busy, not the GPU.

    python -m benchmarks.gpu_tests FILE... --out junit.xml

Exit status: that of the first process which has failed.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path
from xml.etree import ElementTree


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    parser.add_argument("--out", type=Path, required=True, help="what all of them have found, as pytest writes it")
    options = parser.parse_args()
    suites = ElementTree.Element("testsuites")
    with tempfile.TemporaryDirectory() as scratch:
        running = {
            Path(scratch, f"{file.stem}.xml"): subprocess.Popen(
                (
                    sys.executable, "-m", "pytest", str(file), f"--confcutdir={file.parent}", "-q",
                    "-p", "no:cacheprovider", f"--junitxml={Path(scratch, file.stem)}.xml",
                )
            )
            for file in options.files
        }  # fmt: skip
        statuses = [process.wait() for process in running.values()]
        for found in running:
            if found.is_file():
                suites.extend(ElementTree.parse(found).getroot())
    ElementTree.ElementTree(suites).write(options.out, encoding="utf-8")
    return next((status for status in statuses if status), 0)


if __name__ == "__main__":
    sys.exit(main())
