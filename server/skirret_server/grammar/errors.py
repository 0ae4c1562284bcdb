"""Why a grammar can't be used; the caller sees 400.

GrammarError
├── BadGrammar   it is malformed, or says what is not supported
└── TooComplex   it is fine, and too large for the budget of time and memory
"""

from __future__ import annotations


class GrammarError(Exception):
    pass


class BadGrammar(GrammarError):
    pass


class TooComplex(GrammarError):
    pass
