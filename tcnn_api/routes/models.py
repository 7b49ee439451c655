"""`GET /models`: timm models that can be converted, from the catalogue."""

from functools import cache
from typing import Annotated, Any

from fastapi import APIRouter, Query
from starlette.responses import JSONResponse

from tcnn.zoo import catalogue
from tcnn_api.deps import AUTHENTICATED
from tcnn_api.description import examples
from tcnn_api.schemas import ModelList, ModelView, page_of
from tcnn_jobs.errors import for_requests

router = APIRouter(tags=["models"], dependencies=AUTHENTICATED)

EXAMPLE: dict[str, Any] = {
    "name": "resnet50d", "family": "resnet", "input_size": [3, 224, 224], "parameters": 25576264, "flops": 8657649664,
    "weights": ["ra2_in1k"], "convertible": True, "reason": None, "stage": "layer4", "layers": 3, "kernels": ["3×3"],
    "converted_parameters": 27911092, "converted_flops": 9377804256, "stride_removable": True,
    "registered_as": "t_resnet50d",
}  # fmt: skip


@cache
def _row(name: str) -> dict[str, Any]:
    own = catalogue.entries()[name].model_dump()
    return ModelView(**own | {"reason": own["reason"] and for_requests(own["reason"])}).model_dump(mode="json")


@router.get(
    "/models",
    summary="Find models",
    response_model=ModelList,
    responses={200: examples.answer(examples.listed(EXAMPLE), "Models by name.")},
)
def models(
    query: Annotated[
        str, Query(max_length=100, description="Words in the name, or * and ? patterns.", examples=["resnet50*"])
    ] = "",
    limit: Annotated[int, Query(ge=1, le=2000, description="Maximum number of models.")] = 50,
    convertible: Annotated[bool | None, Query(description="Only models that can, or cannot, be converted.")] = None,
) -> JSONResponse:
    """List timm models: layers, parameters and FLOPs before and after, weights, or why a model cannot be converted.

    Sorted by name. With a query, an exact match comes first, then names that start with it, widely used models first.
    """
    found = [entry for entry in catalogue.ranked(query) if convertible in (None, entry.convertible)]
    rows = [_row(entry.name) for entry in found[:limit]]
    return JSONResponse({"object": "list", **page_of(rows, len(found) > limit)})
