"""Logs in a store that several nodes share: a database that orders and fences what each commits."""
