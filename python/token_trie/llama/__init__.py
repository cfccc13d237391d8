"""Work on a `llama_cpp.Llama`: constrained calls, streams and batches."""
