"""The routes: each validates, asks the store, and answers."""

import pkgutil
from importlib import import_module

from fastapi import APIRouter

ROUTERS: tuple[APIRouter, ...] = tuple(
    import_module(f"api.routes.{module.name}").router for module in pkgutil.iter_modules(__path__)
)
