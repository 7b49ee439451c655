"""Corruptions against what is known of them without their code: moments, block means, other libraries' filters."""

import colorsys
import io

import numpy as np
import pytest
import torch
from data_pictures import photograph
from PIL import Image
from torch.nn.functional import avg_pool2d, interpolate
from torchvision.transforms.functional import rgb_to_grayscale

from tcnn.evaluation.corruptions import SEVERITIES, blur, corrupt, noise_digital, weather

PHOTOGRAPH = photograph("china.jpg").crop((0, 0, 400, 400)).resize((224, 224))
GREY = Image.new("RGB", (224, 224), (128, 128, 128))


def values(image: Image.Image) -> np.ndarray:
    return np.asarray(image, np.float64) / 255


@pytest.fixture
def random() -> np.random.Generator:
    return np.random.default_rng(0)


@pytest.mark.parametrize("severity", [1, 2, 3])
def test_gaussian_noise_has_its_deviation(severity: int) -> None:
    found = values(corrupt(GREY, "gaussian_noise", severity, 0)) - 128 / 255
    assert found.std() == pytest.approx([0.08, 0.12, 0.18][severity - 1], rel=0.02)  # 0.18 still fits the range
    assert found.mean() == pytest.approx(0, abs=0.002)
    assert abs(np.corrcoef(found[..., 0].ravel(), found[..., 1].ravel())[0, 1]) < 0.02


def test_shot_noise_has_the_variance_of_counting(random: np.random.Generator) -> None:
    for brightness, photons in ((0.2, 60), (0.8, 12), (0.5, 3)):
        found = noise_digital.shot(np.full((200, 200, 3), brightness, np.float32), photons, random)
        assert found.mean() == pytest.approx(brightness, rel=0.01)
        assert found.var() == pytest.approx(brightness / photons, rel=0.03)
        assert np.allclose(found * photons, np.rint(found * photons), atol=1e-4)


@pytest.mark.parametrize("severity", SEVERITIES)
def test_impulse_noise_replaces_its_share(severity: int) -> None:
    found = np.asarray(corrupt(GREY, "impulse_noise", severity, 0))
    share = [0.03, 0.06, 0.09, 0.17, 0.27][severity - 1]
    assert (found == 0).mean() == pytest.approx(share / 2, rel=0.05)
    assert (found == 255).mean() == pytest.approx(share / 2, rel=0.05)
    assert ((found == 128) | (found == 0) | (found == 255)).all()


@pytest.mark.parametrize("radius", [3, 6, 10])
def test_defocus_spreads_a_point_over_a_disc(radius: int, random: np.random.Generator) -> None:
    point = np.zeros((61, 61, 1), np.float32)
    point[30, 30] = 1
    spread = blur.defocus(point, (radius, 0.1), random)[..., 0]
    row, column = np.mgrid[-30:31, -30:31]
    inside = row**2 + column**2 <= radius**2
    assert np.allclose(spread[inside], 1 / inside.sum(), rtol=1e-3)
    assert np.abs(spread[~inside]).max() < 1e-6


def test_a_trail_is_half_a_gaussian(random: np.random.Generator) -> None:
    point = np.zeros((41, 41, 1), np.float32)
    point[20, 20] = 1
    along = blur.trail(point, 10, 3, 0)[..., 0]
    expected = np.exp(-(np.arange(21) ** 2) / 18)
    assert np.allclose(along[20, 20::-1], expected / expected.sum(), atol=1e-6)
    assert along.sum() == pytest.approx(1, abs=1e-5)
    assert np.count_nonzero(along) <= 21
    down = blur.trail(point, 10, 3, 90)[..., 0]
    assert np.allclose(down, along.T, atol=1e-6)


def test_glass_only_moves_pixels(random: np.random.Generator) -> None:
    pixels = np.arange(40 * 50, dtype=np.float32).reshape(40, 50, 1)
    moved = blur.glass(pixels, (0, 2, 1), random)
    assert set(moved.ravel()) < set(pixels.ravel())
    rows = np.abs(moved // 50 - pixels // 50)
    assert 0.5 < rows[3:38, 3:48].mean() < 3
    border = np.ones((40, 50), bool)
    border[3:39, 3:49] = False
    assert (moved[border] == pixels[border]).all()


@pytest.mark.parametrize("factor", [1, 1.1, 1.31, 2])
def test_magnify_keeps_the_middle_and_straight_lines(factor: float) -> None:
    ramp = np.broadcast_to(np.linspace(0, 1, 101, dtype=np.float32)[:, None, None], (101, 101, 1))
    larger = blur.magnify(ramp, factor)[:, 50, 0]
    assert larger[50] == pytest.approx(0.5, abs=0.011)
    slope = np.diff(larger)
    assert np.allclose(slope, slope.mean(), atol=1e-5)
    assert slope.mean() * 100 == pytest.approx(1 / factor, rel=0.02)


def test_zoom_blurs_the_rim_more_than_the_middle() -> None:
    texture = Image.fromarray(np.random.default_rng(0).integers(0, 256, (224, 224), np.uint8))
    far = np.abs(values(corrupt(texture, "zoom_blur", 3, 0)) - values(texture))
    assert far[107:117, 107:117].mean() < 0.7 * far[:20].mean()


@pytest.mark.parametrize("severity", SEVERITIES)
def test_brightness_is_the_value_channel(severity: int) -> None:
    added = [0.1, 0.2, 0.3, 0.4, 0.5][severity - 1]
    before, after = values(PHOTOGRAPH)[::16, ::16], values(corrupt(PHOTOGRAPH, "brightness", severity, 0))[::16, ::16]
    for (r, g, b), found in zip(before.reshape(-1, 3), after.reshape(-1, 3), strict=True):
        h, s, v = colorsys.rgb_to_hsv(r, g, b)
        assert np.abs(np.array(colorsys.hsv_to_rgb(h, s, min(v + added, 1))) - found).max() < 0.5 / 255 + 1e-5


def test_black_becomes_grey() -> None:
    assert corrupt(Image.new("RGB", (100, 100)), "brightness", 2, 0).getpixel((5, 5)) == (51, 51, 51)


@pytest.mark.parametrize("severity", SEVERITIES)
def test_contrast_is_drawn_to_the_mean(severity: int) -> None:
    left = [0.4, 0.3, 0.2, 0.1, 0.05][severity - 1]
    before, after = values(PHOTOGRAPH), values(corrupt(PHOTOGRAPH, "contrast", severity, 0))
    assert after.std((0, 1)) == pytest.approx(left * before.std((0, 1)), abs=0.5 / 255)
    assert after.mean((0, 1)) == pytest.approx(before.mean((0, 1)), abs=0.5 / 255)


def test_pixelate_is_block_means() -> None:
    image = torch.from_numpy(values(PHOTOGRAPH)).permute(2, 0, 1)[None]
    expected = interpolate(avg_pool2d(image, 2), scale_factor=2)[0].permute(1, 2, 0).numpy()
    assert np.abs(values(corrupt(PHOTOGRAPH, "pixelate", 2, 0)) - expected).max() <= 1.01 / 255  # PIL rounds twice


def test_pixelate_never_vanishes() -> None:
    assert corrupt(Image.new("RGB", (1, 300), "red"), "pixelate", 5, 0).getpixel((0, 0)) == (255, 0, 0)


@pytest.mark.parametrize("severity", SEVERITIES)
def test_jpeg_has_its_quality(severity: int) -> None:
    file = io.BytesIO()
    PHOTOGRAPH.save(file, "JPEG", quality=[25, 18, 15, 10, 7][severity - 1])
    assert corrupt(PHOTOGRAPH, "jpeg_compression", severity, 0).tobytes() == Image.open(file).tobytes()


@pytest.mark.parametrize(("sigma", "shape"), [(2.44, (50, 70)), (12, (40, 40)), (60, (30, 45))])
def test_smoothing_is_the_filter_that_scipy_has(sigma: float, shape: tuple[int, int]) -> None:
    field = np.random.default_rng(0).normal(size=shape)
    from scipy.ndimage import gaussian_filter

    expected = gaussian_filter(field, sigma, mode="reflect", truncate=3)
    assert np.allclose(noise_digital._smooth(field, sigma), expected, atol=1e-12)


def test_affine_map_moves_its_corners() -> None:
    """Without displacements and without reach nothing moves; with reach, straight lines stay straight."""
    pixels = values(PHOTOGRAPH).astype(np.float32)
    assert np.allclose(noise_digital.elastic(pixels, (0, 0, 0), np.random.default_rng(0)), pixels, atol=1e-6)
    grid = np.indices((60, 90)).astype(float)
    places = noise_digital._affine(grid, (60, 90), 5, np.random.default_rng(1))
    assert np.allclose(np.diff(places, 2, axis=1), 0, atol=1e-9)
    assert np.allclose(np.diff(places, 2, axis=2), 0, atol=1e-9)
    assert 0.5 < np.abs(places - grid).mean() < 15


def test_fog_keeps_the_range_and_hides_contrast() -> None:
    for severity in SEVERITIES:
        after = values(corrupt(PHOTOGRAPH, "fog", severity, 3))
        assert after.max() <= values(PHOTOGRAPH).max() + 1 / 255
    slope = np.diff(values(PHOTOGRAPH), axis=1).std()
    assert np.diff(values(corrupt(PHOTOGRAPH, "fog", 1, 3)), axis=1).std() < slope / 2


@pytest.mark.parametrize("side", [1, 2, 31, 256])
def test_plasma_fills_its_range(side: int, random: np.random.Generator) -> None:
    found = weather.plasma(side, 2, random)
    assert min(found.shape) >= side
    if side > 1:
        assert (found.min(), found.max()) == (0, 1)


def test_plasma_is_rougher_when_it_decays_slowly() -> None:
    def roughness(decay: float) -> float:
        return float(
            np.mean([np.abs(np.diff(weather.plasma(128, decay, np.random.default_rng(s)))).mean() for s in range(5)])
        )

    assert roughness(1.4) > 2 * roughness(2) > 2 * roughness(3)


def test_snow_brightens_and_greys() -> None:
    red = Image.new("RGB", (128, 128), (180, 20, 20))
    for severity in SEVERITIES:
        after = values(corrupt(red, "snow", severity, 1))
        assert after[..., 1].mean() > values(red)[..., 1].mean() + 0.05
        assert after.max() == 1


@pytest.mark.slow
def test_ice_looks_like_the_photographs() -> None:
    """Statistics of 200 random crops of the benchmark's photographs, measured once; here within a fifth or so."""
    from scipy.ndimage import uniform_filter

    white = np.stack([weather.ice(224, 224, np.random.default_rng(seed)) for seed in range(60)])
    colours = 255 * white.mean() * weather.ICE
    assert colours == pytest.approx([126, 146, 158], rel=0.1)
    grey = 255 * white * weather.ICE.mean()
    assert grey.mean((1, 2)).std() == pytest.approx(46, rel=0.2)
    assert grey.std((1, 2)).mean() == pytest.approx(25.4, rel=0.1)
    assert np.mean([uniform_filter(window, 31).std() for window in grey]) == pytest.approx(14.3, rel=0.2)
    assert np.abs(np.diff(grey)).mean() == pytest.approx(10.8, rel=0.3)


def test_ice_of_any_shape() -> None:
    for shape in ((8, 8), (224, 160), (31, 100)):
        white = weather.ice(*shape, np.random.default_rng(0))
        assert white.shape == shape
        assert 0 <= white.min() < white.max() <= 1


def test_frost_adds_ice_to_the_image() -> None:
    """At one seed the ice is the same, so black and white backgrounds differ by the image's weight."""
    black, white = (values(corrupt(Image.new("RGB", (200, 200), c), "frost", 5, 3)) for c in ("black", (100, 100, 100)))
    unclipped = white.max(2) < 1
    assert np.abs(white - black)[unclipped].mean() == pytest.approx(0.6 * 100 / 255, abs=0.005)


def test_grey_is_luma() -> None:
    pixels = np.random.default_rng(0).random((8, 8, 3)).astype(np.float32)
    expected = rgb_to_grayscale(torch.from_numpy(pixels).permute(2, 0, 1))[0].numpy()
    assert np.allclose(weather._grey(pixels)[..., 0], expected, atol=2e-3)
