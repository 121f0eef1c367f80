"""What is shown of a run: the data of its page, the page's static files, and both together as one file, report.html.

In: a run directory. Out: plain values for the lab, report.html. Never writes anything else, never opens a port.
"""
