"""Sampling and scoring elsewhere: vLLM servers, the actors of a Ray cluster; and what a regular expression allows.

In: requests, groups. Out: groups, outcomes. Never updates weights.
"""
