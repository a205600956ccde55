"""Storage of nodes without disks: commits in a database, bulk in an object store."""
