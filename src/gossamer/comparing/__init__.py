"""What gossamer.compare stands on: settings, variants, the work of one process, the document, the folder, the bars."""
