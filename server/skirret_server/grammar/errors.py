"""Why a grammar can't be used; the caller sees 400.

GrammarError
├── BadGrammar   it is malformed, or says what is not supported
│   └── BadTool  it is the schema of the parameters of one tool
└── TooComplex   it is fine, and too large for the budget of time and memory
    └── TooSlow  this machine didn't get to it in time: it may the next time
"""

from __future__ import annotations


class GrammarError(Exception):
    pass


class BadGrammar(GrammarError):
    pass


class BadTool(BadGrammar):
    def __init__(self, index: int, reason: str) -> None:
        super().__init__(index, reason)
        self.index = index
        self.reason = reason

    def __str__(self) -> str:
        return self.reason


class TooComplex(GrammarError):
    pass


class TooSlow(TooComplex):
    pass
