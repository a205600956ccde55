"""One module for each subject of the console: a question to the cluster, and what a template shows.

Each function takes a Visit and returns a Screen, or where to look next. None of them knows HTTP.
"""
