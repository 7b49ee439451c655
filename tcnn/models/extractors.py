"""Match module names of timm's feature extractors (`features_only=True`) with those of the classifier.

`FeatureListNet` and `FeatureDictNet` write `stages.3` as `stages_3`; the others hold the classifier as `model`
(getter), `body` (hook) or `graph_module` (fx).
"""

from collections.abc import Iterable

PREFIXES = ("", "model_", "body_", "graph_module_")


def flat(name: str) -> str:
    """A dotted name as timm's extractors write it."""
    return name.replace(".", "_")


def match(names: Iterable[str], extractors: Iterable[str]) -> dict[str, str]:
    """Map names in an extractor to those of the classifier; layers that the extractor lacks are left out."""
    names = list(names)
    there = {flat(name): name for name in extractors}
    for prefix in PREFIXES:
        found = {there[key]: name for name in names if (key := prefix + flat(name)) in there}
        if found:
            return found
    return {}
