"""Masks for batches: filled on the host, applied to logits, and made on a torch device."""
