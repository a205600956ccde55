"""Programs for working on the project: they are never imported by what users install."""
