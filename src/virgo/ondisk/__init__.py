"""Graphs on disk: built in bounded memory, read by memory-mapping."""

from __future__ import annotations

from virgo.ondisk.format import FORMAT, Header, open_array, read_header, verify

__all__ = ["FORMAT", "Header", "open_array", "read_header", "verify"]
