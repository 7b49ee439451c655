"""The pictures of README and docs/: a small ResNet on handwritten digits, converted and fine-tuned while τ rises to 1.

    python -m benchmarks.drawing.pictures                 # trains first: a few minutes
    python -m benchmarks.drawing.pictures --runs DIR      # keeps runs there, and draws from them the next time

Besides, the converted and the fine-tuned model are evaluated on 450 held-out digits, under the fifteen corruptions and
at several sizes.
"""

import argparse
import json
import tempfile
from pathlib import Path

import timm
import torch
from torch import nn

import tcnn
from tcnn.analysis.inspect import inspect
from tcnn.analysis.plots import gallery, style
from tcnn.analysis.reading.evaluations import EvaluationFile
from tcnn.config import FinetuneConfig, finetune_config
from tcnn.config.evaluation import EvaluationConfig
from tcnn.demo.digits import MEAN, SIZE, STD, write_digits
from tcnn.evaluation.comparing.comparison import compare
from tcnn.evaluation.corruptions import CORRUPTIONS
from tcnn.training.finetune import finetune
from tcnn.training.runs.rundir import read_metrics

IMAGES = Path(__file__).parents[2] / "docs" / "img"
WANTED = (
    "training", "gates-and-spans", "centres", "non-locality", "attention-1-combined", "attention-1-content",
    "corruptions", "resolution",
)  # fmt: skip
QUERY = (0.5, 0.4)
SIZES = (32, 48, 64, 80, 96, 128)
EPOCHS = 8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, help="a directory for what is trained, or in which it is already")
    given = parser.parse_args().runs
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        runs = given or Path(scratch)
        if not (runs / "finetuned" / "best.safetensors").is_file():
            train(runs)
        draw(runs)


def train(runs: Path) -> None:
    """The CNN, the converted model, and the T-CNN fine-tuned with the paper's annealing."""
    digits, held_out = write_digits(runs / "digits")
    trained = finetune(model(), digits, held_out, recipe(convert=False, lr=2e-3), runs / "cnn", force=True)
    converted = tcnn.convert(tcnn.load(trained.last, source=model())).model
    checkpoint = tcnn.save(converted, runs / "t_resnet-digits.safetensors", force=True)
    finetune(checkpoint, digits, held_out, recipe(lr=5e-4), runs / "finetuned", force=True)


def model() -> nn.Module:
    """At an output stride of 16 its last stage works on 4×4 maps."""
    torch.manual_seed(0)
    made = timm.create_model("test_resnet", num_classes=10, in_chans=1, output_stride=16)
    own = {"input_size": (1, SIZE, SIZE), "mean": (MEAN,), "std": (STD,), "crop_pct": 1.0}
    made.pretrained_cfg = made.default_cfg = {**made.pretrained_cfg, **own}
    return made


def recipe(**changes: object) -> FinetuneConfig:
    own = {
        "epochs": EPOCHS, "warmup_epochs": 1, "anneal_epochs": EPOCHS / 2, "size": SIZE, "workers": 0, "hflip": 0.0,
        "scale": (0.8, 1.0), "ratio": (0.9, 1.1), "device": "cpu", "anneal": "warmup",
        "conversion": {"content_heads": 0},
    }  # fmt: skip
    return finetune_config("quick", options={**own, **changes})


def draw(runs: Path) -> None:
    """Write the pictures that the documentation shows."""
    tuned, digits = runs / "finetuned" / "best.safetensors", runs / "digits"
    found = inspect(tuned, digits / "val", QUERY, limit=64, shown=1)
    rows = evaluate(runs).rows
    drawn = [
        *gallery.training_plots(read_metrics(runs / "finetuned" / "metrics.jsonl")),
        *gallery.inspection_plots(found),
        *gallery.evaluation_plots(rows),
    ]
    for picture in drawn:
        if picture.name in WANTED:
            style.write(picture.figure, IMAGES / picture.name, ("png",), force=True)
            print(IMAGES / f"{picture.name}.png")


def evaluate(runs: Path) -> EvaluationFile:
    """Converted and fine-tuned model, corrupted at their own size and clean at several; kept beside the runs."""
    file = runs / "pictures.json"
    if not file.is_file():
        models = [str(runs / "t_resnet-digits.safetensors"), str(runs / "finetuned" / "best.safetensors")]
        sizes = tuple((side, side) for side in SIZES)
        results = [
            compare(models, str(runs / "digits"), EvaluationConfig(corruptions=CORRUPTIONS)),
            compare(models, str(runs / "digits"), EvaluationConfig(sizes=sizes)),
        ]
        labels = dict(zip(models, ("converted", "fine-tuned"), strict=True))
        rows = [row.model_copy(update={"model": labels[row.model]}) for result in results for row in result.rows]
        merged = results[0].model_copy(update={"rows": rows})
        file.write_text(merged.model_dump_json())
    return EvaluationFile.model_validate(json.loads(file.read_text()))


if __name__ == "__main__":
    main()
