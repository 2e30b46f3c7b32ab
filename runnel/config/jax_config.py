"""Configures JAX, in the user's process and in every worker."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

MIN_COMPILE_TIME = "jax_persistent_cache_min_compile_time_secs"
CPU_SCHEDULER = "xla_cpu_enable_concurrency_optimized_scheduler"


def cache_directory() -> str:
    """The directory of the compilation cache, unless JAX is configured otherwise. Imports no JAX."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return os.environ.get("JAX_COMPILATION_CACHE_DIR") or os.path.join(home, "runnel", "xla")


def configure_jax() -> None:
    """Configures JAX; settings that the user has made are left alone."""
    import jax

    if jax.config.values["jax_compilation_cache_dir"] is None:
        # Compiled programs are kept between runs, so that only the first start is slow.
        jax.config.update("jax_compilation_cache_dir", cache_directory())
        jax.config.update(MIN_COMPILE_TIME, 0.5)
    flags = os.environ.get("XLA_FLAGS", "")
    if CPU_SCHEDULER not in flags:
        # It looks for work to do side by side; small programs on the CPU have none, and pay in every call.
        os.environ["XLA_FLAGS"] = f"{flags} --{CPU_SCHEDULER}=false".strip()
    # Acting on the CPU takes microseconds; handing it to another thread and back takes longer.
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    with contextlib.suppress(ImportError, AttributeError):  # a later JAX may name its lowerings differently
        from runnel.config import cpu_convolutions

        cpu_convolutions.register()


def cache_every_program() -> None:
    """Keeps small programs in the compilation cache too: for a worker that compiles the same ones several times in a
    run. A limit that the user has set is left alone."""
    import jax

    if MIN_COMPILE_TIME.upper() not in os.environ:
        jax.config.update(MIN_COMPILE_TIME, 0.0)


@contextlib.contextmanager
def lowering_for_elsewhere() -> Iterator[None]:
    """Within this context, programs are lowered as JAX itself does it, without the names of the traced files."""
    import jax

    frames = jax.config.values["jax_traceback_in_locations_limit"]
    jax.config.update("jax_traceback_in_locations_limit", 0)
    try:
        with contextlib.ExitStack() as stack:
            with contextlib.suppress(ImportError, AttributeError):  # as above: then nothing was replaced
                from runnel.config import cpu_convolutions

                stack.enter_context(cpu_convolutions.left_to_jax())
            yield
    finally:
        jax.config.update("jax_traceback_in_locations_limit", frames)


def keep_off_devices(machine: Any) -> None:
    """Keeps a process that only starts workers away from the GPUs, whose memory is theirs."""
    import jax
    from jax._src import xla_bridge  # there is no public way to ask

    if not xla_bridge.backends_are_initialized() and any(not name.startswith("cpu") for name in machine.devices):
        jax.config.update("jax_platforms", "cpu")
