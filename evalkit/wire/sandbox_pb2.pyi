from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class FinishReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FINISH_REASON_UNSPECIFIED: _ClassVar[FinishReason]
    END: _ClassVar[FinishReason]
    STOP_STRING: _ClassVar[FinishReason]
    LENGTH: _ClassVar[FinishReason]
    CANCELLED: _ClassVar[FinishReason]
    HANDED_OVER: _ClassVar[FinishReason]

class SessionState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SESSION_STATE_UNSPECIFIED: _ClassVar[SessionState]
    OPEN: _ClassVar[SessionState]
    SESSION_HANDED_OVER: _ClassVar[SessionState]
    CLOSED: _ClassVar[SessionState]
FINISH_REASON_UNSPECIFIED: FinishReason
END: FinishReason
STOP_STRING: FinishReason
LENGTH: FinishReason
CANCELLED: FinishReason
HANDED_OVER: FinishReason
SESSION_STATE_UNSPECIFIED: SessionState
OPEN: SessionState
SESSION_HANDED_OVER: SessionState
CLOSED: SessionState

class DescribeRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DescribeReply(_message.Message):
    __slots__ = ("model_digest", "declared_model", "engine", "flow_digest", "max_sessions", "max_context_tokens", "max_turn_tokens", "version")
    MODEL_DIGEST_FIELD_NUMBER: _ClassVar[int]
    DECLARED_MODEL_FIELD_NUMBER: _ClassVar[int]
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    FLOW_DIGEST_FIELD_NUMBER: _ClassVar[int]
    MAX_SESSIONS_FIELD_NUMBER: _ClassVar[int]
    MAX_CONTEXT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_TURN_TOKENS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    model_digest: str
    declared_model: str
    engine: str
    flow_digest: str
    max_sessions: int
    max_context_tokens: int
    max_turn_tokens: int
    version: str
    def __init__(self, model_digest: _Optional[str] = ..., declared_model: _Optional[str] = ..., engine: _Optional[str] = ..., flow_digest: _Optional[str] = ..., max_sessions: _Optional[int] = ..., max_context_tokens: _Optional[int] = ..., max_turn_tokens: _Optional[int] = ..., version: _Optional[str] = ...) -> None: ...

class OpenSessionRequest(_message.Message):
    __slots__ = ("session_id", "tenant", "system_text", "locale")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    SYSTEM_TEXT_FIELD_NUMBER: _ClassVar[int]
    LOCALE_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    tenant: str
    system_text: str
    locale: str
    def __init__(self, session_id: _Optional[str] = ..., tenant: _Optional[str] = ..., system_text: _Optional[str] = ..., locale: _Optional[str] = ...) -> None: ...

class OpenSessionReply(_message.Message):
    __slots__ = ("session_id", "idle_ttl_ms")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    IDLE_TTL_MS_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    idle_ttl_ms: int
    def __init__(self, session_id: _Optional[str] = ..., idle_ttl_ms: _Optional[int] = ...) -> None: ...

class Sampling(_message.Message):
    __slots__ = ("max_new_tokens", "temperature", "top_k", "top_p", "seed", "stop")
    MAX_NEW_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    max_new_tokens: int
    temperature: float
    top_k: int
    top_p: float
    seed: int
    stop: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, max_new_tokens: _Optional[int] = ..., temperature: _Optional[float] = ..., top_k: _Optional[int] = ..., top_p: _Optional[float] = ..., seed: _Optional[int] = ..., stop: _Optional[_Iterable[str]] = ...) -> None: ...

class TurnRequest(_message.Message):
    __slots__ = ("session_id", "turn_id", "user_text", "sampling")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    TURN_ID_FIELD_NUMBER: _ClassVar[int]
    USER_TEXT_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    turn_id: str
    user_text: str
    sampling: Sampling
    def __init__(self, session_id: _Optional[str] = ..., turn_id: _Optional[str] = ..., user_text: _Optional[str] = ..., sampling: _Optional[_Union[Sampling, _Mapping]] = ...) -> None: ...

class Intent(_message.Message):
    __slots__ = ("label", "probability", "out_of_scope")
    LABEL_FIELD_NUMBER: _ClassVar[int]
    PROBABILITY_FIELD_NUMBER: _ClassVar[int]
    OUT_OF_SCOPE_FIELD_NUMBER: _ClassVar[int]
    label: str
    probability: float
    out_of_scope: bool
    def __init__(self, label: _Optional[str] = ..., probability: _Optional[float] = ..., out_of_scope: _Optional[bool] = ...) -> None: ...

class Handover(_message.Message):
    __slots__ = ("decided", "reason", "score")
    DECIDED_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    decided: bool
    reason: str
    score: float
    def __init__(self, decided: _Optional[bool] = ..., reason: _Optional[str] = ..., score: _Optional[float] = ...) -> None: ...

class Satisfaction(_message.Message):
    __slots__ = ("score", "probability_dissatisfied")
    SCORE_FIELD_NUMBER: _ClassVar[int]
    PROBABILITY_DISSATISFIED_FIELD_NUMBER: _ClassVar[int]
    score: float
    probability_dissatisfied: float
    def __init__(self, score: _Optional[float] = ..., probability_dissatisfied: _Optional[float] = ...) -> None: ...

class Usage(_message.Message):
    __slots__ = ("prompt_tokens", "reused_tokens", "generated_tokens", "dropped_turns")
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    REUSED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    GENERATED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    DROPPED_TURNS_FIELD_NUMBER: _ClassVar[int]
    prompt_tokens: int
    reused_tokens: int
    generated_tokens: int
    dropped_turns: int
    def __init__(self, prompt_tokens: _Optional[int] = ..., reused_tokens: _Optional[int] = ..., generated_tokens: _Optional[int] = ..., dropped_turns: _Optional[int] = ...) -> None: ...

class Timings(_message.Message):
    __slots__ = ("queue_ns", "prefill_ns", "first_token_ns", "decode_ns", "intent_ns", "handover_ns", "satisfaction_ns", "total_ns")
    QUEUE_NS_FIELD_NUMBER: _ClassVar[int]
    PREFILL_NS_FIELD_NUMBER: _ClassVar[int]
    FIRST_TOKEN_NS_FIELD_NUMBER: _ClassVar[int]
    DECODE_NS_FIELD_NUMBER: _ClassVar[int]
    INTENT_NS_FIELD_NUMBER: _ClassVar[int]
    HANDOVER_NS_FIELD_NUMBER: _ClassVar[int]
    SATISFACTION_NS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_NS_FIELD_NUMBER: _ClassVar[int]
    queue_ns: int
    prefill_ns: int
    first_token_ns: int
    decode_ns: int
    intent_ns: int
    handover_ns: int
    satisfaction_ns: int
    total_ns: int
    def __init__(self, queue_ns: _Optional[int] = ..., prefill_ns: _Optional[int] = ..., first_token_ns: _Optional[int] = ..., decode_ns: _Optional[int] = ..., intent_ns: _Optional[int] = ..., handover_ns: _Optional[int] = ..., satisfaction_ns: _Optional[int] = ..., total_ns: _Optional[int] = ...) -> None: ...

class TurnReply(_message.Message):
    __slots__ = ("session_id", "turn_id", "turn_index", "text", "token_ids", "finish_reason", "intent", "handover", "satisfaction", "usage", "timings", "state")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    TURN_ID_FIELD_NUMBER: _ClassVar[int]
    TURN_INDEX_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    INTENT_FIELD_NUMBER: _ClassVar[int]
    HANDOVER_FIELD_NUMBER: _ClassVar[int]
    SATISFACTION_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    TIMINGS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    turn_id: str
    turn_index: int
    text: str
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    finish_reason: FinishReason
    intent: Intent
    handover: Handover
    satisfaction: Satisfaction
    usage: Usage
    timings: Timings
    state: SessionState
    def __init__(self, session_id: _Optional[str] = ..., turn_id: _Optional[str] = ..., turn_index: _Optional[int] = ..., text: _Optional[str] = ..., token_ids: _Optional[_Iterable[int]] = ..., finish_reason: _Optional[_Union[FinishReason, str]] = ..., intent: _Optional[_Union[Intent, _Mapping]] = ..., handover: _Optional[_Union[Handover, _Mapping]] = ..., satisfaction: _Optional[_Union[Satisfaction, _Mapping]] = ..., usage: _Optional[_Union[Usage, _Mapping]] = ..., timings: _Optional[_Union[Timings, _Mapping]] = ..., state: _Optional[_Union[SessionState, str]] = ...) -> None: ...

class TurnChunk(_message.Message):
    __slots__ = ("text", "token_ids", "reply")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    REPLY_FIELD_NUMBER: _ClassVar[int]
    text: str
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    reply: TurnReply
    def __init__(self, text: _Optional[str] = ..., token_ids: _Optional[_Iterable[int]] = ..., reply: _Optional[_Union[TurnReply, _Mapping]] = ...) -> None: ...

class GetSessionRequest(_message.Message):
    __slots__ = ("session_id",)
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    def __init__(self, session_id: _Optional[str] = ...) -> None: ...

class TranscriptTurn(_message.Message):
    __slots__ = ("turn_id", "user_text", "reply")
    TURN_ID_FIELD_NUMBER: _ClassVar[int]
    USER_TEXT_FIELD_NUMBER: _ClassVar[int]
    REPLY_FIELD_NUMBER: _ClassVar[int]
    turn_id: str
    user_text: str
    reply: TurnReply
    def __init__(self, turn_id: _Optional[str] = ..., user_text: _Optional[str] = ..., reply: _Optional[_Union[TurnReply, _Mapping]] = ...) -> None: ...

class SessionTranscript(_message.Message):
    __slots__ = ("session_id", "state", "turns", "model_digest")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    TURNS_FIELD_NUMBER: _ClassVar[int]
    MODEL_DIGEST_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    state: SessionState
    turns: _containers.RepeatedCompositeFieldContainer[TranscriptTurn]
    model_digest: str
    def __init__(self, session_id: _Optional[str] = ..., state: _Optional[_Union[SessionState, str]] = ..., turns: _Optional[_Iterable[_Union[TranscriptTurn, _Mapping]]] = ..., model_digest: _Optional[str] = ...) -> None: ...

class CloseSessionRequest(_message.Message):
    __slots__ = ("session_id",)
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    def __init__(self, session_id: _Optional[str] = ...) -> None: ...

class CloseSessionReply(_message.Message):
    __slots__ = ("state", "turns")
    STATE_FIELD_NUMBER: _ClassVar[int]
    TURNS_FIELD_NUMBER: _ClassVar[int]
    state: SessionState
    turns: int
    def __init__(self, state: _Optional[_Union[SessionState, str]] = ..., turns: _Optional[int] = ...) -> None: ...
