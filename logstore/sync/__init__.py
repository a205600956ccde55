"""Making bytes durable: the journal, and one sync for many files."""
