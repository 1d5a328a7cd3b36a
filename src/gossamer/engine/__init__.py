"""HOW a layer computes and what it saves: a recipe, lowered to one engine per module.

engine      the interface that layers are written on
choice      engine_of(module); recipe -> engine
rules       which path a call takes: device, dtype, size, hooks, autocast, torch.compile
epilogue    norm, activation, dropout as one; Deferred
attention   what attention layers tell an engine
gradient    gradients that travel as int8 rows
noise       seeds of rounding
float32     the engine that saves everything as it is
saved/      the engine that saves few bits; published.py as the papers have it
int8/       the engine that multiplies in int8, on top of one of the others
"""
