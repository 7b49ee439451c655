"""Initialise a timm vision transformer or ConvMixer: `tcnn.initialise` in place, `tcnn init` into a file for timm."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import torch
from safetensors.torch import save_file
from timm.layers.patch_embed import PatchEmbed
from timm.models._hub import save_config_for_hf
from timm.models.convit import ConVit
from timm.models.convmixer import ConvMixer
from timm.models.vision_transformer import Attention
from torch import Tensor, nn

from tcnn.arguments import fits, typed
from tcnn.errors import RequestError, one_line, shorten
from tcnn.files import check_output, replacing
from tcnn.layers.initialise import mimetic
from tcnn.models.checks import refuse_inference_tensors, refuse_other_images, unwrapped
from tcnn.models.running import told_in_one_line
from tcnn.models.trace import evaluating
from tcnn.vit import impulse
from tcnn.vit.convit import initialise_convit
from tcnn.vit.impulse import coordinates, draw_offsets, fourier_features, initialise_convmixer
from tcnn.vit.model import Tokens, attention_inputs, checked, patch_positions, set_query_key
from tcnn.vit.report import Initialisation, InitialisationReport, InitialisedLayer, Positions
from tcnn.zoo.sources import create_source

IMAGES = 32
"""Number of images that are drawn where none are given."""
VALUE, IDENTITY = 0.4, 0.4
"""Of `draw_mimetic`: W_val W_out = VALUE·Z − IDENTITY·I, with Z of independent normal entries of variance 1/D."""


@torch.no_grad()
@typed("initialisation", "positions")
def initialise(
    model: nn.Module,
    initialisation: Initialisation = "impulse",
    *,
    images: Tensor | None = None,
    seed: int = 0,
    window: int | None = None,
    peak: float | None = None,
    positions: Positions | None = None,
    locality: float | None = None,
    progress: Callable[[str], None] | None = None,
) -> InitialisationReport:
    """Initialise the attention of a timm vision transformer, or the filters of a ConvMixer, in place.

    Args:
        model: any `timm` VisionTransformer with a positional embedding (`vit_*`, `deit_*`; class, distillation and
            register tokens or none), ConViT (`convit_*`) or ConvMixer (`convmixer_*`). All that is not named here stays
            as timm initialised it.
        initialisation: `impulse`: each head attends to one random offset, as a convolution with an impulse filter
            (Zheng, Li and Lucey); `mimetic`: queries look for tokens like themselves (Trockman and Kolter 2023);
            `default`: attention stays timm's own. ConViT takes `convolution` (`tcnn.vit.convit`), `random` positions
            and `default`; ConvMixer `impulse`, whose filters are frozen (`tcnn.vit.impulse`), and `default`.
        images: (B, C, H, W), normalised as the model expects: the tokens to which `impulse` is fitted; by default noise
            with the spectrum of photographs.
        seed: of the offsets and of what is drawn.
        window: offsets lie in a window of so many patches, odd; by default 3, and for ConvMixer its whole kernel.
        peak: `impulse` gives the patch at the offset this mean attention weight, between 0 and 1; by default 0.5.
        positions: what the positional embedding of patches becomes: `fourier`, the features of `tcnn.vit.impulse` at
            the mean square of the patches' embedding, or `keep`. By default `fourier`, and `keep` with `default`. It
            stays a parameter if it was one.
        locality: α of `convolution`, above 0; by default 1.
        progress: called with the name of every layer before it is initialised.

    Returns: an `InitialisationReport` with what every layer does on the images.

    Raises: `RequestError` for a model without positional embedding or with another attention, impossible settings, and
        settings that have no effect on this model.
    """
    if not fits(initialisation, Initialisation):
        found = shorten(repr(initialisation), 60)
        raise RequestError(f"init: expected {', '.join(get_args(Initialisation))}, found {found}")
    if window is not None and (window < 1 or window % 2 == 0):
        raise RequestError(f"window: expected an odd number of patches, for example 3, found {window}")
    if peak is not None and not 0 < peak < 1:
        raise RequestError(f"peak: expected an attention weight between 0 and 1, found {peak:g}")
    if positions is not None and not fits(positions, Positions):
        found = shorten(repr(positions), 60)
        raise RequestError(f"positions: expected {' or '.join(get_args(Positions))}, found {found}")
    model = unwrapped(model)
    refuse_inference_tensors(model, "initialise")
    if images is not None:
        refuse_other_images(images)
    _check_seed(seed)
    _refuse_unused(model, initialisation, positions, images=images, window=window, peak=peak, locality=locality)
    notes = unseen_pixels(model)
    generator = torch.Generator().manual_seed(int(seed))
    if isinstance(model, ConVit):
        report = initialise_convit(model, initialisation, 1.0 if locality is None else locality, seed, generator)
    elif isinstance(model, ConvMixer):
        report = initialise_convmixer(model, initialisation, window, seed, generator)
    elif initialisation in ("convolution", "random"):
        raise RequestError(f"init: {initialisation} is of ConViT (convit_*), found a {type(model).__name__}")
    else:
        aim = 0.5 if peak is None else peak
        report = _initialise_vit(model, initialisation, images, seed, window, aim, positions, generator, progress)
    return report.model_copy(update={"notes": notes})


def _check_seed(seed: int) -> None:
    if not 0 <= seed < 2**63:
        raise RequestError(f"seed: expected a whole number from 0 to 2⁶³ − 1, found {seed}")


def _refuse_unused(
    model: nn.Module, initialisation: Initialisation, positions: Positions | None, **given: object
) -> None:
    """Raise `RequestError` for the first setting that was given and has no effect on this model."""
    gated, mixer = isinstance(model, ConVit), isinstance(model, ConvMixer)
    transformer, impulse = not gated and not mixer, initialisation == "impulse"
    keeps = positions == "keep" or (positions is None and initialisation == "default")
    rules = (
        ("images", transformer and (impulse or not keeps), "impulse, or fourier positions, of vit_* and deit_* read"),
        ("window", impulse and not gated, "impulse, of vit_*, deit_* and convmixer_*, has"),
        ("peak", impulse and transformer, "impulse of vit_* and deit_* has"),
        ("locality", initialisation == "convolution" and gated, "convolution, of convit_*, has"),
    )
    found = f"{initialisation} of a {type(model).__name__}"
    for name, has, which in rules:
        if given[name] is not None and not has:
            raise RequestError(
                f"{name}: only {which} {'them' if name == 'images' else 'one'}, found {found}; leave it out"
            )
    if positions == "fourier" and not transformer:
        raise RequestError(f"positions: only vit_* and deit_* have an embedding of them, found {found}; leave it out")


def unseen_pixels(model: nn.Module) -> tuple[str, ...]:
    """A note where patches do not fill the images that the model is made for: what is left over, it never sees.

    Raises: `RequestError` where the model's patches refuse such images, as those of timm do that take any other size.
    """
    embedding = getattr(model, "patch_embed", None)
    if not isinstance(embedding, PatchEmbed) or embedding.img_size is None or embedding.dynamic_img_pad:
        return ()
    (height, width), (high, wide) = embedding.img_size, embedding.patch_size
    seen = height // high * high, width // wide * wide
    if seen == (height, width):
        return ()
    found = f"patches of {high}×{wide} pixels do not fill {height}×{width}"
    if not embedding.strict_img_size:
        raise RequestError(f"img_size: {found}, which this model asks for; choose a size that is a multiple")
    return (f"{found}: the model sees {seen[0]}×{seen[1]} of them; choose a size that is a multiple",)


def _initialise_vit(
    model: nn.Module, initialisation: Initialisation, images: Tensor | None, seed: int, window: int | None,
    peak: float, positions: Positions | None, generator: torch.Generator, progress: Callable[[str], None] | None,
) -> InitialisationReport:  # fmt: skip
    """`initialise` of a vision transformer."""
    vit, tokens = checked(model)
    batch = photograph_noise(vit, generator) if images is None else images
    batch = batch.to(vit.pos_embed)
    chosen: Positions = positions or ("keep" if initialisation == "default" else "fourier")
    if chosen == "fourier":
        place_positions(vit, tokens, batch)
    layers = []
    names = {module: name for name, module in vit.named_modules()}
    with evaluating(vit), told_in_one_line(vit, batch):
        for attention, z in attention_inputs(vit, batch):
            if progress is not None:
                progress(names[attention])
            if initialisation == "impulse":
                offsets = draw_offsets(attention.num_heads, 3 if window is None else window, generator)
                impulse.solve(attention, z, tokens, offsets, peak)
                hits, weight = impulse.hit_rate(attention, z[: impulse.MEASURED], tokens, offsets)
                layers.append(InitialisedLayer(name=names[attention], offsets=tuple(offsets), hits=hits, weight=weight))
            elif initialisation == "mimetic":
                draw_mimetic(attention, generator)
    return InitialisationReport(
        model=type(vit).__name__, initialisation=initialisation, positions=chosen, grid=tokens.grid,
        prefix_tokens=tokens.prefix, seed=seed, layers=tuple(layers),
    )  # fmt: skip


@torch.no_grad()
def draw_mimetic(attention: Attention, generator: torch.Generator) -> None:
    """Draw W_qry, W_key, W_val and W_out of a layer, in place: queries look for tokens like themselves.

    Trockman and Kolter 2023, *Mimetic Initialization of Self-Attention Layers*, §3: in trained transformers W_qry
    W_keyᵀ is near a positive multiple of the identity, and W_val W_out near a negative one. Raises `RequestError` where
    the heads together are not as wide as the D channels.
    """
    width = attention.qkv.weight.shape[1]
    if attention.attn_dim != width or attention.proj.weight.shape[0] != width:
        raise RequestError(f"attention of {attention.attn_dim} in {width} channels: mimetic needs as many as there are")
    for head in range(attention.num_heads):
        set_query_key(attention, head, *mimetic(width, attention.head_dim, generator))
    noise = torch.randn(width, width, generator=generator) * width**-0.5
    left, values, right = torch.linalg.svd(VALUE * noise - IDENTITY * torch.eye(width))
    root = values.sqrt()
    # Rows of W_val are channels of the heads: W_out·W_val is the product that a token sees.
    attention.qkv.weight.unflatten(0, (3, width))[2].copy_(root[:, None] * right)
    attention.proj.weight.copy_(left * root)
    for bias in (attention.qkv.bias, attention.proj.bias):
        if bias is not None:
            bias.zero_()


def initialise_file(
    name: str,
    output: Path,
    initialisation: Initialisation = "impulse",
    force: bool = False,
    progress: Callable[[str], None] | None = None,
    model_args: dict[str, object] | None = None,
    **options: object,
) -> InitialisationReport:
    """Create a timm model with timm's random weights, initialise it, and write it: a .safetensors file or a directory.

    A directory has timm's hub layout, which keeps `model_args` too: ``local-dir:DIR`` is its name for timm and `tcnn`.
    A file is loaded by ``timm.create_model(name, checkpoint_path=output)``, by timm's train.py as
    ``--initial-checkpoint`` and by `tcnn finetune` as ``--weights``. `options` are those of `initialise`.
    """
    check_output(output, force)
    seed = int(str(options.get("seed", 0)))
    _check_seed(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = create_source(name, False, **(model_args or {}))  # type: ignore[arg-type]
    report = initialise(model, initialisation, progress=progress, **options)  # type: ignore[arg-type]
    report = report.model_copy(update={"model": name})
    cfg: dict[str, object] = model.pretrained_cfg  # type: ignore[assignment]
    for word in ("tag", "license"):  # of weights that these are not
        cfg.pop(word, None)
    state = {key: value.contiguous() for key, value in model.state_dict().items()}
    metadata = {"format": "pt", "tcnn_init": report.model_dump_json()}
    with replacing(output, force) as temporary:
        if output.suffix == ".safetensors":
            save_file(state, temporary, metadata)
        else:
            temporary.mkdir()
            save_file(state, temporary / "model.safetensors", metadata)
            save_config_for_hf(model, str(temporary / "config.json"))
    return report


@torch.no_grad()
def place_positions(vit: nn.Module, tokens: Tokens, images: Tensor) -> None:
    """Give patches Fourier features for positions, as large as their embeddings are on these images; others stay."""
    model, _ = checked(vit)
    try:
        embedded = model.patch_embed(images)
    except (AssertionError, RuntimeError) as error:
        raise RequestError(f"images: {one_line(error)}") from error
    own = patch_positions(model, tokens)
    features = fourier_features(coordinates(tokens.grid), tokens.grid, own.shape[2])
    own.copy_(features * (embedded.square().mean() / features.square().mean()).sqrt())


def photograph_noise(vit: nn.Module, generator: torch.Generator) -> Tensor:
    """Images (B, C, H, W) of noise with the spectrum of photographs, 1/f, of mean 0 and variance 1."""
    embed: Any = vit.patch_embed
    height, width = embed.img_size
    shape = (IMAGES, embed.proj.in_channels, height, width)
    y, x = torch.meshgrid(torch.fft.fftfreq(height), torch.fft.rfftfreq(width), indexing="ij")
    falling = 1 / (y.square() + x.square()).sqrt().clamp(min=1 / max(height, width))
    drawn = torch.fft.irfft2(torch.fft.rfft2(torch.randn(shape, generator=generator)) * falling, s=(height, width))
    return (drawn - drawn.mean()) / drawn.std()
