"""What tests share: nasty graphs, how results are compared, how noise is judged, and how a path is forced."""
