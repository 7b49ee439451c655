"""Do converted networks with real weights say of real photographs what their CNNs say? Every option of the conversion.

    python benchmarks/reproduce/predictions.py tiny_darknet --data imagenet-samples/ \
        --weights tiny-darknet-imagenet.safetensors

Attention computes the logits, never the convolution that stands in for it at the conversion's τ. The CNN is that of the
same geometry: with its stride kept, or dilated. Results go to benchmarks/results/predictions.json.
"""

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from networks.building import OWN
from safetensors.torch import load_file
from torch import Tensor, nn

import tcnn
from tcnn.config import ConversionConfig
from tcnn.data.image_set import open_dataset
from tcnn.evaluation.evaluate import transform_for
from tcnn.files import replacing
from tcnn.layers.backends.selection import use_backend
from tcnn.models.difference import errors

sys.path.append(str(Path(__file__).parents[1]))
from reporting import hardware, versions

RESULTS = Path(__file__).parents[1] / "results" / "predictions.json"
OPTIONS: dict[str, dict[str, Any]] = {
    "as it is": {},
    "content heads": {"content_heads": 4},
    "mimetic content heads": {"content_heads": 4, "query_key": "mimetic"},
    "dilated": {"stride": "dilate"},
    "dilated, content heads": {"stride": "dilate", "content_heads": 4},
    "window:7": {"content": "window:7", "content_heads": 2},
    "pooled:7": {"content": "pooled:7", "content_heads": 2},
    "without padding": {"content": "global,unpadded", "content_heads": 2},
}
"""What is converted how."""


def main() -> None:
    options = parse()
    torch.set_num_threads(options.threads)
    cnn = OWN[options.network]()
    cnn.load_state_dict(load_file(options.weights))
    cnn.eval()
    images, targets = photographs(options.data, cnn)
    dilated = tcnn.without_stride(cnn, stride="dilate")
    expected = {"keep": logits(cnn, images), "dilate": logits(dilated, images)}
    known = json.loads(options.out.read_text()) if options.out.exists() else {}
    rows = known.get(options.network, {}).get("rows", []) if options.resume else []
    for name, choice in OPTIONS.items():
        if any(row["option"] == name for row in rows):
            continue
        started = time.monotonic()
        config = ConversionConfig(**choice)
        converted, report = tcnn.convert(cnn, config)
        with use_backend("fused"):
            found = logits(converted.eval(), images)
        wanted = expected[config.stride]
        rows.append(
            {
                "option": name,
                "settings": choice,
                "layers": len(report.layers),
                "images": len(images),
                "same_prediction": int((found.argmax(1) == wanted.argmax(1)).sum()),
                "right_cnn": int((wanted.argmax(1) == targets).sum()),
                "right_tcnn": int((found.argmax(1) == targets).sum()),
                "relative_error": errors(wanted, found).worst,
                "seconds": round(time.monotonic() - started, 1),
            }
        )
        print(json.dumps(rows[-1]), flush=True)
        write(options.out, options.network, rows)


def write(out: Path, network: str, rows: list[dict[str, Any]]) -> None:
    """A network's rows so far; those of the other one are read again, for it may be measured at the same time."""
    results = json.loads(out.read_text()) if out.exists() else {}
    results[network] = {
        "rows": rows,
        "hardware": hardware("cpu"),
        "versions": versions("tcnn", "torch", "timm"),
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    with replacing(out, force=True) as temporary:
        temporary.write_text(json.dumps(results, indent=2, ensure_ascii=False) + "\n")


def photographs(spec: str, model: nn.Module) -> tuple[Tensor, Tensor]:
    """All images of a data set as the network sees them, (N, 3, H, W), and their classes, (N,)."""
    data, transform = open_dataset(spec, "validation"), transform_for(model)
    return torch.stack([transform(data.load(index)[0]) for index in range(len(data))]), data.targets


@torch.no_grad()
def logits(model: nn.Module, images: Tensor) -> Tensor:
    """(N, classes), float32."""
    return torch.cat([model(part) for part in images.split(20)])


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("network", choices=OWN)
    parser.add_argument("--data", required=True, help="class folders")
    parser.add_argument("--weights", required=True, type=Path, help="a safetensors file")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--resume", action="store_true", help="go on behind the options that are in the results")
    parser.add_argument("--out", type=Path, default=RESULTS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
