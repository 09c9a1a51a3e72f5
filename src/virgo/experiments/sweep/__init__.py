"""Sweeps over the paper's grids, and the tables made from their records."""
