"""What tests of several packages drive the log store with: no part of a running broker."""
