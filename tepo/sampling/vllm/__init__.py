"""vLLM, in process and as servers."""
