"""Conversations: tools, environments and many turns. Environments never see tokens; the engine keeps sampled ids."""
