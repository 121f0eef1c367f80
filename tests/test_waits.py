"""Nothing in the package waits for ever: every wait has a deadline, or is listed here with what ends it."""

import ast
from collections.abc import Iterator

import pytest

from source_tree import Module, modules

WATCHDOG = "the watchdog ends a run in which nothing is finished any more"
PARENT = "ends with the process that would send: the connection closes"
BOUNDED: dict[tuple[str, str], str] = {
    # (module, call): what ends it
    ("grouprl.models.manifest", "ThreadPoolExecutor(_AT_ONCE)"): "reads files",
    ("grouprl.forward.workers", "waiting.popleft().result()"): WATCHDOG,
    ("grouprl.forward.workers", "results.get()"): WATCHDOG,
    ("grouprl.forward.workers", "running.pop(index).result()"): "the stream has ended",
    (
        "grouprl.forward.workers",
        "ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,))",
    ): WATCHDOG,
    ("grouprl.kernels.calibration", "ThreadPoolExecutor(1)"): "measures for _SECONDS",
    ("grouprl.kernels.calibration", "pool.submit(_measure, contest).result()"): "measures for _SECONDS",
    ("grouprl.kernels.calibration", "fcntl.flock(opened, fcntl.LOCK_UN)"): "releases",
    (
        "grouprl.environments.conversation",
        "ThreadPoolExecutor(_THREADS, thread_name_prefix='environment')",
    ): "each call has tool_seconds",
    ("grouprl.rollout.decoding", "self._waiting.wait()"): "waits for a tick at most",
    ("grouprl.rollout.episodes", "future.exception()"): "the future is done",
    ("grouprl.rollout.episodes", "future.result()"): "the future is done",
    ("grouprl.environments.endpoint", "self._events.get()"): "the process is killed after tool_seconds",
    (
        "grouprl.environments.endpoint",
        "request.answers.get()",
    ): "a daemon thread, which ends with the episode's process",
    ("grouprl.environments.endpoint", "self._free.acquire(blocking=False)"): "it does not wait",
    ("grouprl.environments.endpoint", "sys.exception()"): "not a wait",
    (
        "grouprl.forward.products",
        "ThreadPoolExecutor(1, initializer=torch.set_num_threads, initargs=(threads,))",
    ): "multiplies a few small matrices",
    ("grouprl.forward.products", "pool.submit(_measured, dtype, *size).result()"): "multiplies a few small matrices",
    ("grouprl.environments.guest", "receive_frame(channel)"): PARENT,
    ("grouprl.environments.openenv", "self._socket.recv(self._seconds)"): "the argument is its deadline",
    ("grouprl.environments.processes", "self._busy.acquire(blocking=False)"): "does not wait",
    ("grouprl.environments.processes", "ThreadPoolExecutor(max(1, len(jobs)))"): "each call has tool_seconds",
    ("grouprl.environments.processes", "done.result()"): "each call has tool_seconds",
    ("grouprl.environments.processes", "worker.channel.recv(1, socket.MSG_PEEK)"): "settimeout(0) before it",
    ("grouprl.engines.vllm", "sampled.get()"): "each call has rollout.engine.seconds; " + WATCHDOG,
    ("grouprl.engines.vllm", "running.result()"): "the coroutine has ended",
    ("grouprl.rewards.calls", "scored.result()"): "each call has scoring.seconds, then the worker is killed; "
    + WATCHDOG,
    ("grouprl.rewards.calls", "ThreadPoolExecutor(1, thread_name_prefix=name)"): WATCHDOG,
    ("grouprl.rewards.calls", "result.result()"): "the rewards' own time limits; " + WATCHDOG,
    ("grouprl.rewards.calls", "running.result()"): "set before the coroutine's first await",
    ("grouprl.rewards.http", "ThreadPoolExecutor(1)"): "runs `exchange`, which has `seconds` in all",
    ("grouprl.rewards.http", "pool.submit(asyncio.run, exchange()).result()"): "`exchange` has `seconds` in all",
    ("grouprl.tools.trackers.following", "self._jobs.get()"): "a daemon thread, for which the run waits END_SECONDS",
    ("grouprl.forward.experts", "_NOTED.get()"): "a variable of the context",
    ("grouprl.engines.ray_samplers", "done.result()"): "as_completed gave it",
    ("grouprl.engines.ray_scorers", "self._pool.submit(None).result()"): "each job of an actor has cluster.seconds",
    ("grouprl.tools.planner.machine", "wait()"): "the device's synchronize: it ends what was queued",
    ("grouprl.rewards.workers.zygote", "receive_frame(channel)"): PARENT,
    ("grouprl.rewards.workers.zygote", "receive_frame(control)"): PARENT,
    ("grouprl.rewards.workers.zygote", "socket.recv_fds(zygote.control, _NUMBER.size, 1)"): PARENT,
    ("grouprl.rewards.workers.zygote", "receive_exactly(zygote.control, _NUMBER.size - len(message))"): PARENT,
    ("grouprl.rewards.workers.frames", "channel.recv(min(_CHUNK, count - len(parts)))"): "settimeout before it",
    ("grouprl.rewards.workers.frames", "channel.recv(1, socket.MSG_PEEK)"): "settimeout(0) before it",
}
# Calls without arguments wait for ever; with any, the first is the time. The words are also those of other classes,
# which are listed above if they appear.
BARE = {"wait", "join", "result", "get", "select", "acquire", "exception"}
# urlopen's timeout is for each read, so that a server that drips holds it for ever: `grouprl.rewards.http.fetch`.
ALWAYS = {"urlopen", "recv", "recv_into", "recv_fds", "accept", "flock", "ThreadPoolExecutor", "ProcessPoolExecutor"}
FRAMES = {"receive_frame", "receive_exactly"}  # our own
SUBPROCESS = {"run", "call", "check_call", "check_output"}


def waits(module: Module) -> Iterator[tuple[str, str]]:
    """Every call that could wait without a deadline."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Call) and _waits(node):
            yield module.name, ast.unparse(node)


def _waits(call: ast.Call) -> bool:
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    keywords = {keyword.arg for keyword in call.keywords}
    owner = ast.unparse(call.func.value) if isinstance(call.func, ast.Attribute) else ""
    if name == "communicate":
        return "timeout" not in keywords
    if name in BARE:
        return not call.args and "timeout" not in keywords
    if name in FRAMES:
        return "seconds" not in keywords and len(call.args) < 3
    if owner == "subprocess" and name in SUBPROCESS:
        return "timeout" not in keywords
    if name == "waitpid":
        return "WNOHANG" not in ast.unparse(call)
    if name == "flock":
        return "LOCK_NB" not in ast.unparse(call) or "|" not in ast.unparse(call)
    return name in ALWAYS


def test_every_wait_has_a_deadline_or_is_bounded_otherwise():
    found = {wait for module in modules() for wait in waits(module)}
    assert sorted(found ^ set(BOUNDED)) == []


@pytest.mark.parametrize(
    ("without", "with_one"),
    [
        ("process.wait()", "process.wait(5)"),
        ("thread.join()", "', '.join(names)"),
        ("future.result()", "future.result(3)"),
        ("jobs.get()", "jobs.get(timeout=1)"),
        ("lock.acquire()", "found.get('a')"),
        ("process.communicate(b'text')", "process.communicate(timeout=3)"),
        ("subprocess.run(['cc'], check=False)", "subprocess.run(['cc'], timeout=3)"),
        ("os.waitpid(child, 0)", "os.waitpid(child, os.WNOHANG)"),
        ("fcntl.flock(file, fcntl.LOCK_EX)", "fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)"),
        ("receive_frame(channel)", "receive_frame(channel, seconds=3)"),
        ("urlopen(address, timeout=3)", "fetch(address, 3.0, 1000)"),
        *((f"{call}(10)", "call(10)") for call in ("channel.recv", "socket.recv_fds", "server.accept")),
        ("with ThreadPoolExecutor(2) as pool: ...", "with pool: ..."),
    ],
)
def test_a_wait_without_a_deadline_is_seen(without: str, with_one: str):
    assert list(waits(Module("grouprl.tasks.base", without)))
    assert list(waits(Module("grouprl.tasks.base", with_one))) == []
