"""`make trace`: the way of a request through files and calls, measured on a running broker.

`samples` makes requests from their declarations, `world` does what has to happen before them,
`broker` runs a broker and records its calls, `way` counts and draws them, `__main__` has the
command line and the table of docs/architecture.md.
"""
