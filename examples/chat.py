"""Asks a model one question and prints the answer as it comes.

python examples/chat.py http://127.0.0.1:8080/v1 smollm2 "What is the capital of France?"
"""

import sys

from openai import OpenAI


def main(base_url: str, model: str, question: str) -> None:
    client = OpenAI(base_url=base_url, api_key="none")
    stream = client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": question}], stream=True
    )
    for chunk in stream:
        for choice in chunk.choices:
            print(choice.delta.content or "", end="", flush=True)
    print()


if __name__ == "__main__":
    main(*sys.argv[1:])
