"""`POST /tokenize` and `POST /detokenize`, as vLLM has them."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from toktier.errors import ToktierError

from . import wire
from .docs import described
from .errors import ApiError, of_toktier
from .gate import note
from .schemas import DetokenizeRequest, DetokenizeResponse, TokenizeRequest, TokenizeResponse
from .settings import UNKNOWN_LENGTH
from .state import RAW, state, wants_raw
from .strings import token_strings

router = APIRouter()
_LARGE = 1 << 12  # ids from which on an answer is written in a thread


@router.post("/tokenize", **described(TokenizeRequest, TokenizeResponse, raw=True))
async def tokenize(request: Request) -> Response:
    """The ids of a prompt."""
    service, raw = state(request), wants_raw(request)
    asked = await service.asked(request, TokenizeRequest)
    if raw and asked.return_token_strs:
        raise ApiError(422, "invalid_request", "strings do not come as raw ids: ask for JSON", "return_token_strs")
    name, tokenizer = service.model(asked.model)
    noted = note(request.scope)
    noted.model = name
    try:
        call = service.tier.encode_async(
            asked.prompt,
            tokenizer=name,
            special_tokens=asked.special_tokens,
            add_special_tokens=asked.add_special_tokens,
            timeout=service.settings.timeout,
        )
        answer = await service.unless_gone(request, call)
    except ToktierError as e:
        raise of_toktier(e, "prompt") from None
    noted.path = answer.path
    length = service.settings.max_model_len.get(name, UNKNOWN_LENGTH)
    headers = {"x-toktier-path": answer.path, "x-toktier-served-bytes": str(answer.served_bytes)}
    headers["x-toktier-scanned-bytes"] = str(answer.scanned_bytes)

    def written() -> bytes:
        if raw:
            return wire.raw(answer.ids)
        strings = token_strings(tokenizer, answer.ids) if asked.return_token_strs else None
        count = len(answer.ids)
        return wire.dump({"count": count, "max_model_len": length, "tokens": answer.ids, "token_strs": strings})

    if raw:
        headers |= {"x-toktier-count": str(len(answer.ids)), "x-toktier-max-model-len": str(length)}
    content = await service.off_loop(written) if len(answer.ids) > _LARGE else written()
    return Response(content, media_type=RAW if raw else "application/json", headers=headers)


@router.post("/detokenize", **described(DetokenizeRequest, DetokenizeResponse))
async def detokenize(request: Request) -> Response:
    """The text of ids; bytes that are not UTF-8 become U+FFFD, as the reference decodes them."""
    service = state(request)
    asked = await service.asked(request, DetokenizeRequest)
    name, tokenizer = service.model(asked.model)
    note(request.scope).model = name

    def decoded() -> bytes:
        return wire.dump({"prompt": tokenizer.decode(asked.tokens)})

    try:
        content = await service.off_loop(decoded)
    except ToktierError as e:
        raise of_toktier(e, "tokens") from None
    return Response(content, media_type="application/json")
