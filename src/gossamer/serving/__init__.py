"""Serving an integer model over HTTP: `gossamer serve`. Needs the extra `serve` (FastAPI and uvicorn).

model     Served: the engine with a loaded graph, and what a request asks of it
limits    how large and how slow a request may be
metrics   counters and latencies, as Prometheus reads them
app       the endpoints
page      a page that shows the model and lets one try a node
"""
