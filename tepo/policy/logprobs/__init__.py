"""Log-probs and entropies of packed tokens, fused."""
