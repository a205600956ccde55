"""A stopped broker's data directory, verified and mended: `magnetar check`, `magnetar repair`."""
