"""What stands beside a training: import, plan, doctor, check-reward, compare, selftest, replay, trackers, export, push.

In: configurations, run directories. Out: screens and files. Never decides what a training computes.
"""
