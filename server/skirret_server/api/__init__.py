"""The HTTP door: OpenAI's routes and SGLang's own, one pipeline for all of them."""
