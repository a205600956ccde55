"""One partition: a ledger, and the state that is a fold of its batches."""
