"""Word counts, exactly once, by three workers in one group while they and the broker are killed.

The main job of the broker on real input: `demo` runs it for a person, `run` for the tests.

    text (6 partitions)  --workers-->  word-counts (4)     key: a word, value: how often in one
    batch
                                       inputs-counted (1)  which inputs one transaction counted

Both outputs and the group's offsets are written in one transaction per batch.
"""
