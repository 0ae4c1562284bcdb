"""The one error envelope every door of Skirret answers with.

ApiError
├── InvalidRequest   400: the caller's input is wrong; `param` says where
├── Unauthorized     401: no key, or an unknown one
├── NotFound         404: no such model, file, batch or route
├── Conflict         409: only a cancel of an ended batch
├── TooLarge         413: a body or file over its limit
├── Overloaded       429: a queue is full; come back after `retry_after` seconds
├── OverQuota        429: too much is asked for already; come back when some of it is done
├── Unavailable      503: loading, draining or nothing to answer; come back later
│   └── BadGateway   502: the server ended while it had the request
└── ServerFault      500: ours
"""

from __future__ import annotations

from typing import Any


class ApiError(Exception):
    """A refusal with everything the caller needs: status, message, type, param and code."""

    status = 500
    type = "server_error"
    code: str | None = None

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        status: int | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code if code is not None else self.code
        self.status = status or self.status
        self.headers = headers or {}

    def body(self) -> dict[str, Any]:
        """The envelope, as OpenAI's clients read it."""
        return {
            "error": {
                "message": self.message,
                "type": self.type,
                "param": self.param,
                "code": self.code,
            }
        }


class InvalidRequest(ApiError):
    status = 400
    type = "invalid_request_error"


class Unauthorized(ApiError):
    status = 401
    type = "invalid_request_error"
    code = "invalid_api_key"


class NotFound(ApiError):
    status = 404
    type = "invalid_request_error"


class Conflict(ApiError):
    """Never to be retried: the client would do so by itself on a bare 409."""

    status = 409
    type = "invalid_request_error"

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message, param=param, headers={"x-should-retry": "false"})


class TooLarge(ApiError):
    status = 413
    type = "invalid_request_error"
    code = "request_too_large"


class Overloaded(ApiError):
    status = 429
    type = "rate_limit_error"
    code = "rate_limit_exceeded"

    def __init__(
        self,
        message: str,
        *,
        retry_after: int = 1,
        code: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        after = {"retry-after": str(min(retry_after, 120))}
        super().__init__(message, code=code, headers={**after, **(headers or {})})


class OverQuota(ApiError):
    """Not to be tried again at once, as the client would by itself."""

    status = 429
    type = "rate_limit_error"

    def __init__(self, message: str, *, code: str) -> None:
        super().__init__(message, code=code, headers={"x-should-retry": "false"})


class Unavailable(ApiError):
    status = 503
    type = "server_error"
    code = "service_unavailable"

    def __init__(
        self, message: str, *, retry_after: int = 1, headers: dict[str, str] | None = None
    ) -> None:
        super().__init__(
            message, headers={"retry-after": str(min(retry_after, 120)), **(headers or {})}
        )


class BadGateway(Unavailable):
    """Not 503: a batch's worker tells a line that ends servers from servers that are away."""

    status = 502
    code = "bad_gateway"


class ServerFault(ApiError):
    """Our bug. The message never carries a traceback, only the request's id."""

    def __init__(self, request_id: str) -> None:
        super().__init__(
            "The server had an error while processing your request. Sorry about that! "
            f"(request ID {request_id})"
        )
