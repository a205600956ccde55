"""Random inputs for everything that reads bytes of others: clients, files, settings, tokens.

Each subject is a target: `generate(random) -> bytes` makes an input from what the format declares,
and `run(bytes)` judges what the code makes of it. An input is bytes, so each one that has found a
fault is kept in `corpus/<target>/` and is run again by every test run. Coverage guides nothing: the
declarations already lead past the first check of a length.
"""
