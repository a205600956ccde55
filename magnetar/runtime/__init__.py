"""The coordinators' shells: they await, append and drive; every rule they follow lives in
`coordinator`."""
