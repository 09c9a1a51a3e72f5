"""Graphs as operators on one number per node: in memory, on disk, and in a database."""
