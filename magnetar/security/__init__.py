"""Who a client is: principals, the SASL mechanisms, and the state of a connection's login.

Everything here is pure: no socket, no clock, no file. Random bytes and the time are given. The
connection calls `Session`; `magnetar.runtime.authentication` makes one for each connection.
"""
