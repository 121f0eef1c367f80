"""The live page: answers what the page asks of a folder of runs, and starts and stops them.

In: run directories, requests from this machine. Out: JSON, static files, processes. Never reached from elsewhere.
"""
