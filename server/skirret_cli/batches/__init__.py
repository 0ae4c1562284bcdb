"""`skirret batch`: batches of the OpenAI API, against the gateway or a server with files.

command   the commands, on one page
api       HTTP: which calls, tried how often, and what a failure says
lines     an input file: checked, renamed to another model, cut down to some of its lines
follow    waits for a batch to end, and shows how far it is
words     a batch, told to a person (pure)
"""
