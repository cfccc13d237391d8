"""On a `llama_cpp.Llama`: its calls constrained, streams beside it, and what they are opened on."""
