"""Decisions about transactions, groups and producer ids. Pure: no I/O, no clock, no await."""
