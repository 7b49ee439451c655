"""Sixteen everyday categories and the classes of ImageNet that belong to them, by WordNet's hierarchy.

A class belongs to a category where its chain of hypernyms leads through it. Geirhos et al. (2018, 2019) use such
categories; their lists may differ in a class. Classes are named by their WordNet ids. ImageNet's dogs and birds are
many and lie together in WordNet's order, so they are given as the first and last of each stretch.
"""

from collections.abc import Sequence
from functools import cache

STRETCHES: dict[str, tuple[tuple[str, str], ...]] = {
    "bird": (
        ("n01514668", "n01622779"),  # cock … great grey owl
        ("n01795545", "n01860187"),  # black grouse … black swan
        ("n02002556", "n02058221"),  # white stork … albatross
    ),
    "dog": (("n02085620", "n02113978"),),  # Chihuahua … Mexican hairless
    "cat": (("n02123045", "n02127052"),),  # tabby … lynx: domestic cats and wildcats, no big cats
    "bear": (("n02132136", "n02134418"),),
    "elephant": (("n02504013", "n02504458"),),
}
MEMBERS: dict[str, tuple[str, ...]] = {
    "airplane": ("n02690373",),  # airliner
    "bicycle": ("n02835271", "n03792782"),  # tandem, mountain bike
    "boat": (  # canoe, catamaran, fireboat, gondola, lifeboat, speedboat, trimaran, yawl
        "n02951358", "n02981792", "n03344393", "n03447447", "n03662601", "n04273569", "n04483307", "n04612504",
    ),
    "bottle": (  # of beer, pills, pop, water and wine; jugs, which are bottles with a narrow mouth
        "n02823428", "n03937543", "n03983396", "n04557648", "n04591713", "n04560804", "n04579145",
    ),
    "car": (  # ambulance, estate car, cab, convertible, jeep, limousine, minivan, Model T, racer, sports car
        "n02701002", "n02814533", "n02930766", "n03100240", "n03594945", "n03670208", "n03770679", "n03777568",
        "n04037443", "n04285008",
    ),
    "chair": ("n02791124", "n03376595", "n04099969", "n04429376"),  # barber's, folding, rocking; throne
    "clock": ("n02708093", "n03196217", "n04548280"),  # analog, digital, wall
    "keyboard": ("n03085013", "n04505470"),  # of computers, of typewriters
    "knife": ("n03041632", "n03658185"),  # cleaver, letter opener
    "oven": ("n03259280", "n04111531"),  # Dutch oven, rotisserie
    "truck": (  # fire engine, garbage truck, moving van, pickup, police van, tow truck, trailer truck
        "n03345487", "n03417042", "n03796401", "n03930630", "n03977966", "n04461696", "n04467665",
    ),
}  # fmt: skip
CATEGORIES = tuple(sorted((*STRETCHES, *MEMBERS)))
"""The sixteen, in the order of the alphabet."""


@cache
def members(synsets: tuple[str, ...]) -> dict[str, tuple[int, ...]]:
    """The outputs of every category, of a model whose outputs are these WordNet ids in this order."""
    place = {synset: index for index, synset in enumerate(synsets)}
    found = {name: tuple(place[synset] for synset in MEMBERS.get(name, ())) for name in CATEGORIES}
    for name, stretches in STRETCHES.items():
        found[name] = tuple(
            index for synset, index in place.items() if any(first <= synset <= last for first, last in stretches)
        )
    return found


def of_names(names: Sequence[str]) -> dict[str, tuple[int, ...]] | None:
    """The same of a model whose classes are called as the categories are; None if one of them is missing."""
    if not set(CATEGORIES) <= set(names):
        return None
    return {name: (list(names).index(name),) for name in CATEGORIES}
