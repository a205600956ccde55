"""The shells around the rules: they await, append, and carry out. The rules of transactions and
groups are in `coordinator`, those of one log in `logstore`."""
