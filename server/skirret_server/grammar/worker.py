"""`python -m skirret_server.grammar.worker`: compiles grammars where nothing else can be hurt.

Reads one spec a line from standard input; answers each with eight bytes of length and, packed, what
was made or raised.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
import traceback

from skirret_server.grammar.automaton import Budget
from skirret_server.grammar.errors import BadGrammar, GrammarError, TooComplex
from skirret_server.grammar.making import Made, make
from skirret_server.grammar.packing import packed
from skirret_server.grammar.spec import Spec

# What is being generated comes first; but at 10, beside busy threads, a grammar takes ten times as
# long.
_NICE = 5
_RECURSION = 20_000  # trees are deep; their depth is bounded where they are made


def main(seconds: float, memory: int) -> None:
    os.nice(_NICE)
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    sys.setrecursionlimit(_RECURSION)
    for line in sys.stdin.buffer:
        answer = packed(_answer(Spec(**json.loads(line)), seconds))
        sys.stdout.buffer.write(len(answer).to_bytes(8, "big") + answer)
        sys.stdout.buffer.flush()


def _answer(spec: Spec, seconds: float) -> Made | GrammarError:
    # Its own time, so that a busy machine refuses nothing that an idle one compiles.
    end = time.process_time() + seconds
    try:
        return make(spec, Budget(is_over=lambda: time.process_time() > end))
    except GrammarError as error:
        return error
    except MemoryError:
        return TooComplex("the grammar needs too much memory to compile")
    except RecursionError:
        return TooComplex("the grammar is nested too deep")
    except Exception as error:  # a fault of ours must cost this request alone
        traceback.print_exc()
        return BadGrammar(f"it can't be compiled ({type(error).__name__})")


if __name__ == "__main__":
    main(float(sys.argv[1]), int(sys.argv[2]))
