"""Conversations: tools, environments, many turns. Environments never see tokens; the engine keeps the sampled ids."""
