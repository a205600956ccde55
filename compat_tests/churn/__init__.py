"""Groups whose members come, go, are killed and stopped, while their broker is killed.

A *process* runs a few members of one client library; a *member* is one consumer at a time. A member
reports what it has read before it commits, so every committed record is in a report.
"""
