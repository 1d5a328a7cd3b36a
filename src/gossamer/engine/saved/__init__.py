"""The engine that saves few bits for backward (EXACT and block-wise EXACT)."""
