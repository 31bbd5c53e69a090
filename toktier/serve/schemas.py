"""Requests and responses.  Values are taken as they are ("1", 1.0 and true are no 1), and no field is ignored."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, FailFast, Field

SpecialTokens = Literal["parse", "text", "forbid"]
Count = Annotated[int, Field(ge=0)]


class Request(BaseModel):
    """What every request may have."""

    model_config = ConfigDict(strict=True, extra="forbid")
    refused: ClassVar[dict[str, str]] = {}  # fields of the form that are known, and why they are not taken

    model: str | None = Field(default=None, description="Name of a served model; left out: the first one.")


class TokenizeRequest(Request):
    """vLLM's completion form; `special_tokens` is an addition.  The chat form (`messages`) is refused."""

    refused: ClassVar[dict[str, str]] = {
        "messages": "the chat form is not supported, since the ids depend on the model's chat template, which this "
        "service does not have: apply it in the client, and send the result as prompt with add_special_tokens=false"
    }

    prompt: str
    add_special_tokens: bool = Field(default=True, description="Add what the post-processor adds, such as BOS.")
    return_token_strs: bool | None = Field(default=False, description="Also return the tokens as strings.")
    special_tokens: SpecialTokens | None = Field(
        default=None, description="What becomes of special tokens in the prompt; null: the reference's own default."
    )


class TokenizeResponse(BaseModel):
    """vLLM's."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class DetokenizeRequest(Request):
    """vLLM's."""

    tokens: Annotated[list[int], FailFast()]


class DetokenizeResponse(BaseModel):
    """vLLM's."""

    prompt: str


class ChangeRequest(Request):
    """What every change of a session may have; the three conditions must hold before it, or nothing is done (409)."""

    expected_chars: Count | None = Field(default=None, description="Characters of the session's text before.")
    expected_length: Count | None = Field(default=None, description="Number of the session's ids before.")
    if_match: str | None = Field(default=None, description="Digest of the session's ids before.")
    return_ids: bool = Field(default=False, description="Return all ids, too (raw: instead of the patch's).")
    return_digest: bool = Field(default=False, description="Return the digest of the ids after the change.")


class MakingRequest(ChangeRequest):
    """What a change may have that can make a session."""

    text: str
    special_tokens: SpecialTokens | None = Field(
        default=None, description="What becomes of special tokens; null: what the session has, or the default."
    )
    add_special_tokens: bool | None = Field(
        default=None, description="Keep what the post-processor adds around the ids; null: what it has, or false."
    )


class AppendRequest(MakingRequest):
    """Text to add at the end."""

    create: bool = Field(default=False, description="Make the session where there is none.")


class UpdateRequest(MakingRequest):
    """Text to become the session's."""

    create: bool = Field(default=True, description="Make the session where there is none.")


class EditRequest(ChangeRequest):
    """Text to come in place of the characters [start, stop); characters are Unicode code points."""

    start: Count
    stop: Count
    text: str


class PatchBody(BaseModel):
    """`new = old[:start] + ids + old[start + removed:]`."""

    start: int
    removed: int
    ids: list[int]


class SessionState(BaseModel):
    """A session."""

    model: str
    session: str
    length: int = Field(description="Number of ids.")
    chars: int = Field(description="Characters (code points) of the text.")
    digest: str | None = Field(default=None, description="sha256 of the ids as little-endian int32, if asked for.")
    tokens: list[int] | None = Field(default=None, description="All ids, if asked for.")


class ChangeResponse(SessionState):
    """A session after a change, and how its ids changed."""

    patch: PatchBody
    path: str = Field(description="What ran: session (a repair), device, host or reference.")
    reason: str = Field(description="Why.")
    served_bytes: int = Field(description="UTF-8 bytes that the ids stand for.")
    scanned_bytes: int = Field(description="UTF-8 bytes tokenized for this answer.")


class Deleted(BaseModel):
    """What became of a DELETE."""

    model: str
    session: str
    deleted: bool


class ErrorObject(BaseModel):
    """Why a request failed."""

    model_config = ConfigDict(extra="allow")

    type: str
    message: str
    argument: str | None
    status: int
    request_id: str


class ErrorBody(BaseModel):
    """Body of every answer from status 400 on."""

    error: ErrorObject
