"""The commands where the locale knows ASCII alone, on images and classes whose names have more."""

import os
import subprocess
import sys
from pathlib import Path

from data_pictures import draw_classes

LINES = """
finetune test_resnet --no-pretrained --data p --val-split 0.25 --preset quick --epochs 1 --batch-size 4 --size 32 \
--device cpu --workers 0 --out run
evaluate run --json --per-class
evaluate run --csv e.csv
evaluate run --data q --examples 2 --json
predict run p --csv p.csv
predict run p --json
inspect run --images p --json
report run
fold run f.safetensors
push run a/b --dry-run
convert test_resnet t.safetensors --no-pretrained
verify t.safetensors
models resnet18
"""
SCRIPT = """
import sys
from tcnn.cli.main import main
for line in sys.argv[1].strip().splitlines():
    try:
        main(line.split())
    except SystemExit as ended:
        print(line.split()[0], ended.code, file=sys.stderr)
"""


def test_every_command_runs_under_an_ascii_locale(tmp_path: Path) -> None:
    for folder, count in (("p", 4), ("q", 2)):
        draw_classes(tmp_path / folder, ["größe", "b", "naïve"], count)
    (tmp_path / "q" / "größe" / "torn.png").write_bytes(b"no picture")
    environment = {
        **os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, LINES], cwd=tmp_path, env=environment, capture_output=True, check=False
    )
    ends = [line for line in done.stderr.decode().splitlines() if line.split()[-1].isdigit() and len(line.split()) == 2]
    assert ends == [f"{line.split()[0]} 0" for line in LINES.strip().splitlines()], done.stderr.decode()
    assert "größe" in (tmp_path / "p.csv").read_text(encoding="utf-8")
    assert '"gr\\u00f6\\u00dfe"' in done.stdout.decode(), "JSON loses nothing"
