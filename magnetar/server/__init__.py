"""Connections: frames in, answers out. No knowledge of what a request means.

`frames` cuts the byte stream, `memory` bounds what all connections hold, `dispatch` finds and runs
the handler, `connection` keeps the order of answers and the pressure back, `listening` accepts.
"""
