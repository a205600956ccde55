"""A ledger: the batches of one log, in segments on the disk or in memory."""
