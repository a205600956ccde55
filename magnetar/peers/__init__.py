"""The nodes of a cluster among each other: they prove that they are of one cluster, and ask.

A node listens to its peers at an address of its own. Each pair of nodes has one connection in each
direction, on which the dialling node asks. Requests are Kafka's where Kafka's brokers send them
(AddPartitionsToTxn, WriteTxnMarkers), else messages of our own (`runtime.peer_messages`). They have
the authority of a node of the cluster; the same requests on a listener for clients never do.
"""
