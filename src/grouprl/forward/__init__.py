"""Packed tokens to hidden states to log-probs: layouts, attention, shared prefixes, the chunked head, precision."""
