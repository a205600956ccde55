"""Connections: frames in, answers out. No knowledge of what a request means.

`frames` cuts the byte stream, `dispatch` finds and runs the handler, `connection` keeps the order
of answers and the pressure back to the client. `memory` bounds the requests of all connections,
`listening` accepts connections.
"""
