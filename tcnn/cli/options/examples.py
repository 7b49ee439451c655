"""Examples of every command, which its `--help` shows below the options."""

from collections.abc import Iterable

EXAMPLES: dict[str, tuple[str, ...]] = {
    "convert": (
        "tcnn convert resnet50d t_resnet50d.safetensors",
        "tcnn convert resnet18 --no-pretrained --dry-run",
        "tcnn convert resnet50 t.safetensors --weights my_resnet50.pth",
        "tcnn convert resnet50d hub/ --stride dilate --content-heads 4",
    ),
    "verify": (
        "tcnn verify t_resnet50d.safetensors",
        "tcnn verify t_resnet50d.safetensors --images photos/",
        "tcnn verify t.safetensors --weights my_resnet50.pth --explain why.html",
        "tcnn verify resnet50.a1_in1k --against resnet50.tv_in1k --json",
    ),
    "info": ("tcnn info runs/photos", "tcnn info t_resnet50d.safetensors --json", "tcnn info resnet50d"),
    "models": ("tcnn models", "tcnn models resnet50d", "tcnn models 'regnet*' --json"),
    "plan": (
        "tcnn plan resnet50d --data photos/ --preset quick",
        "tcnn plan resnet50d --data photos/ --batch-size 32 --seconds 60",
        "tcnn plan t_resnet50d.safetensors --data photos/ --json",
    ),
    "finetune": (
        "tcnn finetune resnet50d --data photos/ --preset quick",
        "tcnn finetune resnet50d --data photos/ --preset quick --out runs/photos --resume",
        "tcnn finetune t_resnet50d.safetensors --data train/ --val val/ --epochs 10 --batch-size 256",
        "tcnn finetune resnet50d --data photos/ --no-convert --out runs/cnn",
        "tcnn finetune resnetrs50 --data imagenet/ --set conversion.stride=remove --nproc 8",
    ),
    "evaluate": (
        "tcnn evaluate runs/photos",
        "tcnn evaluate resnet50d t_resnet50d.safetensors --data imagenet/",
        "tcnn evaluate runs/photos --data test/ --corruptions --csv robust.csv",
        "tcnn evaluate output/train/mine/model_best.pth.tar --data photos/",
    ),
    "predict": (
        "tcnn predict runs/photos new.jpg",
        "tcnn predict runs/photos holiday/ --top 3 --csv guesses.csv",
        "tcnn predict t_resnet50d.safetensors new.jpg --compare resnet50d",
    ),
    "inspect": (
        "tcnn inspect runs/photos",
        "tcnn inspect runs/photos --images photos/ --out looks",
        "tcnn inspect t_resnet50d.safetensors --json",
    ),
    "report": ("tcnn report runs/photos", "tcnn report runs/photos --out r.html", "tcnn report runs/photos --json"),
    "fold": (
        "tcnn fold runs/photos folded.safetensors",
        "tcnn fold runs/photos folded.safetensors --max-error 0.01",
        "tcnn fold runs/photos pruned.safetensors --prune --data photos",
        "tcnn fold t_resnet50d.safetensors cnn.safetensors --json",
    ),
    "export": (
        "tcnn export runs/photos photos.onnx",
        "tcnn export runs/photos photos.onnx --size 224x224 --fixed",
        "tcnn export runs/photos photos.pt2 --dynamic batch",
        "tcnn export runs/photos photos-explorer --explorer",
    ),
    "init": (
        "tcnn init vit_tiny_patch16_224 vit.safetensors",
        "tcnn init vit_tiny_patch16_224 vit.safetensors --init mimetic --num-classes 10 --size 96",
        "tcnn init deit_small_patch16_224 deit.safetensors --window 5 --json",
    ),
    "push": (
        "tcnn push runs/photos you/t_resnet50d --dry-run",
        "tcnn push runs/photos you/t_resnet50d",
        "tcnn push t_resnet50d.safetensors you/t_resnet50d --json",
    ),
    "demo": ("tcnn demo", "tcnn demo --out demo --epochs 3", "tcnn demo --json"),
}


def epilog(command: str) -> str:
    """The examples of a command of the library, as its help ends with them."""
    return listed(EXAMPLES[command])


def listed(lines: Iterable[str]) -> str:
    """Examples as Typer shows them: blank lines keep them apart."""
    return "Examples:\n\n" + "\n\n".join(f"  {line}" for line in lines)
