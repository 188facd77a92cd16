"""Graph -> Graph, one idea a file; `pipeline` says which and in what order."""
