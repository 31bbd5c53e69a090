"""toktier: exact BPE tokenization for LLM serving and training."""
