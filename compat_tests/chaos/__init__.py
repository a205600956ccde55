"""A cluster over PostgreSQL while everything around it fails, one thing after the other.

Three nodes, each behind a proxy to a primary with a synchronous standby; and a bucket, if asked
for. `faults` does to them what docs/cluster.md lists; `probe` measures how long a client waits
meanwhile. The clients and the checker are those of `compat_tests.soak`.
"""
