"""One run as one file: the page of a run with its data inside, opened without a server.

In: a run directory. Out: report.html. Never writes anything else.
"""
