from hypothesis import settings

# The same examples every time, and no limit on one example's time: a busy machine is not a failing test.
settings.register_profile("suite", derandomize=True, deadline=None)
settings.load_profile("suite")
