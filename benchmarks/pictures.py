"""The pictures of README and docs/, drawn from a run of `tcnn demo`.

    python benchmarks/pictures.py                 # runs the demo first: a few minutes
    python benchmarks/pictures.py --demo DIR      # from what `tcnn demo --out DIR` has kept

Besides the demo's own numbers the converted and the fine-tuned model are evaluated on its 450 held-out digits, under
the fifteen corruptions and at several sizes.
"""

import argparse
import json
import tempfile
from pathlib import Path

import torch

from tcnn.analysis.evaluations import EvaluationFile
from tcnn.analysis.inspect import inspect
from tcnn.analysis.plots import gallery, style
from tcnn.evaluation.comparison import compare
from tcnn.evaluation.config import EvaluationConfig
from tcnn.evaluation.corruptions import CORRUPTIONS
from tcnn.training.demo import run
from tcnn.training.rundir import read_metrics

IMAGES = Path(__file__).parents[1] / "docs" / "img"
WANTED = (
    "training", "gates-and-spans", "centres", "non-locality", "attention-1-combined", "attention-1-content",
    "corruptions", "resolution",
)  # fmt: skip
QUERY = (0.5, 0.4)
SIZES = (32, 48, 64, 80, 96, 128)
EPOCHS = 8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--demo", type=Path, help="a directory of `tcnn demo --out`, not to run it again")
    given = parser.parse_args().demo
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        demo = given or Path(scratch)
        if given is None:
            run(demo, True, 8, EPOCHS, 0, print)
        draw(demo)


def draw(demo: Path) -> None:
    """Write the pictures that the documentation shows."""
    tuned, digits = demo / "finetuned" / "best.safetensors", demo / "digits"
    found = inspect(tuned, digits / "val", QUERY, limit=64, shown=1)
    rows = evaluate(demo).rows
    drawn = [
        *gallery.of_training(read_metrics(demo / "finetuned" / "metrics.jsonl")),
        *gallery.of_inspection(found),
        *gallery.of_evaluations(rows),
    ]
    for picture in drawn:
        if picture.name in WANTED:
            style.write(picture.figure, IMAGES / picture.name, ("png",), force=True)
            print(IMAGES / f"{picture.name}.png")


def evaluate(demo: Path) -> EvaluationFile:
    """Converted and fine-tuned model, corrupted at their own size and clean at several; kept beside the demo."""
    file = demo / "pictures.json"
    if not file.is_file():
        models = [str(demo / "t_resnet-digits.safetensors"), str(demo / "finetuned" / "best.safetensors")]
        sizes = tuple((side, side) for side in SIZES)
        results = [
            compare(models, str(demo / "digits"), EvaluationConfig(corruptions=CORRUPTIONS)),
            compare(models, str(demo / "digits"), EvaluationConfig(sizes=sizes)),
        ]
        labels = dict(zip(models, ("converted", "fine-tuned"), strict=True))
        rows = [row.model_copy(update={"model": labels[row.model]}) for result in results for row in result.rows]
        merged = results[0].model_copy(update={"rows": rows})
        file.write_text(merged.model_dump_json())
    return EvaluationFile.model_validate(json.loads(file.read_text()))


if __name__ == "__main__":
    main()
