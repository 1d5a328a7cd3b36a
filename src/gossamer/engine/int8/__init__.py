"""The engine that multiplies in int8, forward and backward (Tango)."""
