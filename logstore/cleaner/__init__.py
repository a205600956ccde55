"""The log cleaner: what compaction keeps of a log, and the segments that it makes of others."""
