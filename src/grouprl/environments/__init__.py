"""Conversations: tools, environments and many turns. They see no tokens: the engine keeps the sampled ids."""
