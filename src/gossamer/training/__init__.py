"""What the loop in gossamer.train stands on: examples, history, the folder of a run, the bar, random states."""
