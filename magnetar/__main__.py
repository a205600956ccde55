"""`python -m magnetar` is the `magnetar` command."""

from magnetar.cli import main

main(prog_name="magnetar")
