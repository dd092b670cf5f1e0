"""`GET /v1/models`: what the living replicas serve, together."""

from typing import Any

from fastapi import APIRouter

from gateway.errors import ModelNotFound
from gateway.fleet import Fleet


def models_router(fleet: Fleet) -> APIRouter:
    """Routes that list models."""
    router = APIRouter()

    @router.get("/v1/models", summary="The models that can be asked for")
    async def list_models() -> dict[str, Any]:
        return {"object": "list", "data": [card.card for card in fleet.models().values()]}

    @router.get("/v1/models/{model:path}", summary="One model")
    async def get_model(model: str) -> dict[str, Any]:
        card = fleet.models().get(model)
        if card is None:
            raise ModelNotFound(f"The model '{model}' does not exist.", param="model")
        return card.card

    return router
