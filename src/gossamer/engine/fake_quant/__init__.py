"""The engine that trains for integer inference: quantisers at its sites, everything in float32 (Degree-Quant, QAT).

settings     gs.DegreeQuant, gs.QAT
quantiser    one site: its range, learned from what passes, and its levels
protection   which nodes escape the quantisers in a training step, by their degree
engine       where the sites are: what all plans share, and the fused plan
published    the plan of the paper, with a rounding of every message
"""
