"""Which float settings of the algorithms can be arguments of a program, and which are fixed."""

import dataclasses

FIXED = {
    "samples_per_insert",  # decides how often members learn
    "initial_temperature",  # of SAC, which takes its logarithm in Python
}


def float_settings(algorithm) -> list[str]:
    """Those that have a value: an optional one that is left out is not a float."""
    fields = [each.name for each in dataclasses.fields(algorithm) if "float" in str(each.type)]
    return [name for name in fields if type(getattr(algorithm, name)) in (int, float)]


def fixed_settings(algorithm) -> set[str]:
    """The settings that are constants of a program."""
    return FIXED & set(float_settings(algorithm))


def traced_settings(algorithm) -> tuple[str, ...]:
    return tuple(name for name in float_settings(algorithm) if name not in fixed_settings(algorithm))


def another(algorithm, name: str) -> float:
    """Another value of a setting, near its own."""
    return 0.99 * getattr(algorithm, name) or 0.01
