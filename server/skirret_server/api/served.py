"""The model that is served: everything a request needs once loading is done."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from skirret_server.core import Engine
from skirret_server.text.template import ChatTemplate
from skirret_server.text.tokenizer import Tokenizer

if TYPE_CHECKING:  # numpy takes long to import, and the socket must answer first
    from skirret_server.grammar.compiler import GrammarCompiler

ALIAS = "default"  # of the one model that a server has


@dataclass(frozen=True, slots=True)
class Served:
    names: tuple[str, ...]
    path: str
    engine: Engine
    tokenizer: Tokenizer
    template: ChatTemplate | None
    grammars: GrammarCompiler
    template_fault: str | None = None  # why there is none, when the model has one
    created: int = 0  # seconds since the epoch: when it was loaded
    tool_call_parser: str = "auto"
    separates_reasoning: bool = True  # where the model's vocabulary marks it
    max_answer_tokens: int = 1_048_576  # of one request: prompts x choices x max_tokens
    checks_structured: bool = False  # again, after they ended
    is_strict: bool = False  # refuses what OpenAI refuses for its own sake

    def answers_to(self, name: str) -> bool:
        """The path too: who starts a server with a path calls its model by it, as with SGLang."""
        return name in self.names or name in (ALIAS, self.path)

    @property
    def limit(self) -> int:
        """Tokens that one sequence, prompt and answer together, can have."""
        info = self.engine.info
        return min(info.context_length, info.max_total_tokens)
