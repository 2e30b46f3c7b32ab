"""Decides which code named by a stored configuration may be imported and called.

Code that Runnel ships and environments that installed libraries register need no signature. Any other code is imported
only if the user has signed the configuration, names the code (`--trust`), or has imported it in the same process
already. `sign` writes the signature when a run is trained or resumed.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import inspect
import os
import re
import shlex
import sys
import sysconfig
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from runnel import algorithms, deprecated, distributions
from runnel import envs as environments
from runnel.algorithm import Algorithm
from runnel.config import serialization
from runnel.environment import HostEnvironment, JaxEnvironment
from runnel.errors import UserError
from runnel.planning.distribution import Distribution
from runnel.population import PopulationRule
from runnel.recording.files import clean
from runnel.types import EnvSpec
from runnel.user_code import named_modules, signing

PARTS: Final = ("algorithm", "distribution", "environment")
"""The parts of a configuration that name code. They are signed, with all their settings."""

OWN_RULE: Final = "runnel.population:PBT"
OF_GROUPS: Final = (
    "runnel.algorithm:PerGroup", "runnel.algorithms.opponent_pool:OpponentPool", "runnel.algorithms.scripted:Scripted",
)  # fmt: skip
"""Classes whose settings are algorithms of groups, or functions: these are separate names."""

RULE: Final = "rule"
"""The part of a population's configuration that names code."""

EVALUATION: Final = "eval_env_settings"
"""Settings of the environment in evaluation, which are signed like those in training."""

WANDB: Final = "wandb"
"""The part that publishes a run at Weights & Biases, with the user's account."""

SHIPPED: Final = re.compile(
    r"runnel\.(nn(\.\w+)?|config\.search_space|league|matchmaking|population|replay|planning\.(distribution|synchronisation)|types)"
)
"""Modules whose classes and functions may be settings."""

ACTIVATIONS: Final = (
    "celu", "cos", "elu", "exp", "gelu", "glu", "hard_sigmoid", "hard_silu", "hard_swish", "hard_tanh", "identity",
    "leaky_relu", "log_sigmoid", "mish", "relu", "relu6", "selu", "sigmoid", "silu", "sin", "soft_sign", "softmax",
    "softplus", "sparse_plus", "squareplus", "swish", "tanh",
)  # fmt: skip
ACTIVATION_MODULES: Final = ("jax.nn", "jax._src.nn.functions", "jax.numpy", "flax.linen")

SHOWN: Final = 5
LONGEST: Final = 400
"""The number of names that an error lists, and the longest part of each."""


class Name(NamedTuple):
    """An import path, or the name of an environment, in a configuration."""

    path: str
    role: Literal[
        "algorithm", "distribution", "environment", "rule", "setting", "env", "wandb"
    ]  # env: a setting of the environment

    @property
    def module(self) -> str:
        """The module, or the file, that is imported for it; empty if there is none."""
        if self.role in ("env", WANDB):
            return ""
        if self.role == "environment":
            return environments.module_of(self.path) or ""
        return (serialization.split(self.path) or ("", ""))[0]


def names_in(config: Mapping[str, Any], parts: Collection[str] = (*PARTS, RULE, WANDB)) -> list[Name]:
    """Every name in these parts by which code may be imported, each once.

    Any text that could be an import path counts as one: code that reads the settings may treat it so. A text among the
    settings of an environment, `env.key=text`, may be a file that its library opens, loads or even executes.
    """
    found: dict[Name, None] = {}
    for part in [part for part in (*PARTS, RULE) if part in parts and isinstance(config.get(part), Mapping)]:
        key = "name" if part == "environment" else "class"
        named = None if "unavailable" in config[part] else config[part].get(key)
        for own in (serialization.session_path(config[part]), named):
            if isinstance(own, str) and (part == "environment" or serialization.split(own)):
                found[Name(own, part)] = None  # type: ignore[arg-type]
        texts = _texts(config[part].get("settings"))
        if part == "environment":
            both = [*texts, *_texts(config.get(EVALUATION))]
            found |= {Name(f"env.{setting}={text}", "env"): None for setting, text in both}
        else:
            found |= {Name(text, "setting"): None for _, text in texts if serialization.split(text)}
    if WANDB in parts and config.get(WANDB) is True:
        found[Name(WANDB, WANDB)] = None
    return list(found)


def _texts(data: Any) -> Iterator[tuple[str, str]]:
    """Every text in a JSON value, with its key."""
    rest = [("", data)]
    while rest:
        key, value = rest.pop()
        if isinstance(value, str):
            yield key, value
        elif isinstance(value, Mapping):
            rest += [("session", path) for path in [serialization.session_path(value)] if path is not None]
            rest += [(str(below), part) for below, part in value.items() if below != "unavailable"]
        elif isinstance(value, list | tuple):
            rest += [(key, part) for part in value]


# What needs no signature


def is_registered(name: Name) -> bool:
    """Whether a name refers to code that Runnel ships, or to an environment of an installed library."""
    if name.role == "environment":
        return environments.is_registered(name.path)
    if name.role == "env":
        key, _, text = name.path.removeprefix("env.").partition("=")
        return environments.is_choice(key, text)
    name = name._replace(path=deprecated.current_path(name.path))
    if name.path in (*algorithms.REGISTRY.values(), *distributions.REGISTRY.values(), *OF_GROUPS, OWN_RULE):
        return True  # `build` checks that it is an algorithm, or a distribution
    module, attribute = serialization.split(name.path) or ("", "")
    if name.role != "setting" or "." in attribute:
        return False
    if module == "math" or (module in ACTIVATION_MODULES and attribute in ACTIVATIONS):
        return True
    if not SHIPPED.fullmatch(module) or named_modules.file_of(module) is None:
        return False
    value = getattr(importlib.import_module(module), attribute, None)
    ours = isinstance(value, type) or inspect.isfunction(value)
    return ours and bool(SHIPPED.fullmatch(value.__module__)) and value.__qualname__ == attribute  # type: ignore[union-attr]


def is_held(name: Name) -> bool:
    """Whether the user's program has imported the class (or environment, or record) that a name refers to."""
    if name.role in ("env", WANDB):
        return False  # a setting is not a class: having imported the class does not vouch for its settings in a file
    value = None if named_modules.is_served(name.module) else serialization.loaded(name.path)
    kind = value if isinstance(value, type) else type(value)
    if value is None or kind.__module__.partition(".")[0] in sys.stdlib_module_names - {"__main__"}:
        return False
    here = f"{kind.__module__}:{kind.__qualname__}"  # of a session, where a class has no other path
    defined = value is not kind or name.path in (serialization.path_of(value), here)
    match name.role:
        case "algorithm":
            return defined and value is kind and issubclass(kind, Algorithm)
        case "distribution":
            return defined and value is kind and issubclass(kind, Distribution)
        case "rule":
            return defined and value is kind and issubclass(kind, PopulationRule)
        case "environment":
            return defined and _is_users(name.module) and _is_environment(value)
    record = dataclasses.is_dataclass(kind) or (issubclass(kind, tuple) and hasattr(kind, "_fields"))
    return defined and _is_users(name.module) and record


def _is_environment(value: Any) -> bool:
    gymnasium: Any = sys.modules.get("gymnasium")  # an Env cannot exist before its module
    if isinstance(value, type):
        return (gymnasium is not None and issubclass(value, gymnasium.Env)) or all(
            callable(getattr(value, method, None)) for method in ("reset", "step")
        ) or callable(getattr(value, "open", None))  # fmt: skip
    return isinstance(value, JaxEnvironment | HostEnvironment) and isinstance(value.spec, EnvSpec)


def _is_users(module: str) -> bool:
    """Whether a module is neither installed nor Runnel's own."""
    if module.partition(".")[0] == "runnel":
        return False
    file = module if module.endswith(".py") else named_modules.file_of(module)
    return module == "__main__" or (file is not None and not _is_installed(file))


def _is_installed(file: str) -> bool:
    places = [sysconfig.get_path(which) for which in ("stdlib", "platstdlib", "purelib", "platlib")]
    named = {"site-packages", "dist-packages"} & set(Path(file).parts)
    return bool(named) or any(named_modules.is_inside(file, place) for place in places)


# Signatures


class Signed(NamedTuple):
    """The `code` entry of a configuration, and why it is not signed, if it is not."""

    code: dict[str, Any] | None  # None if everything is registered
    problem: str = ""


def sign(config: Mapping[str, Any], run_dir: str | Path | None = None, new_key: bool = True) -> Signed:
    """Signs, for this user, the names in a configuration that are not registered, with the files that define them.

    With `new_key`, a user without a key gets one.
    """
    config = {
        part: clean(config[part]) for part in (*PARTS, RULE, EVALUATION, WANDB) if part in config
    }  # as it will be read
    own = [name for name in names_in(config) if not is_registered(name)]
    if not own:
        return Signed(None)
    code = {"names": {name.path: _source(name) for name in own}}
    for name, source in code["names"].items():
        if run_dir is not None and source["file"] and named_modules.is_inside(source["file"], str(run_dir)):
            return Signed(
                code,
                f"{name} lies in the run's own directory, of which nothing is imported: the run cannot be resumed or "
                "evaluated as it is; choose another --run-dir",
            )
    try:
        key = (signing.make_key if new_key else signing.read_key)(signing.key_file())
    except signing.NoKey as why:
        flags = " ".join(map(_flag, own))
        return Signed(code, f"the run is not signed: {why}. `runnel resume` and `eval` will need {flags}")
    signature = signing.sign(covered(config, code["names"]), key)
    return Signed({**code, "key": signing.fingerprint(key), "signature": signature})


def covered(config: Mapping[str, Any], names: Any) -> dict[str, Any]:
    """The part of a configuration that its signature covers."""
    shown = {WANDB: True} if config.get(WANDB) is True else {}
    shown |= {part: config[part] for part in (EVALUATION, RULE) if config.get(part)}
    return {"what": "runnel run", "names": names, **{part: config.get(part) for part in PARTS}, **shown}


def _source(name: Name) -> dict[str, str | None]:
    """The file that a name's module was imported from, and the directory under which it has that name."""
    module = name.module
    if module.endswith(".py"):
        return {"file": os.path.abspath(module), "root": os.path.dirname(os.path.abspath(module))}
    loaded = getattr(sys.modules.get(module), "__file__", None)
    file = os.path.abspath(loaded) if loaded and module != "__main__" else None
    return {"file": file, "root": None if file is None else named_modules.root_of(module, file)}


def unsigned_because(config: Mapping[str, Any]) -> str:
    """Why a configuration does not count as signed by this user; empty if it does."""
    code = config.get("code")
    if not isinstance(code, Mapping) or not isinstance(code.get("names"), Mapping) or not code.get("signature"):
        return "is not signed"
    try:
        key = signing.read_key(signing.key_file())
    except signing.NoKey as why:
        return f"cannot be verified ({why})"
    if signing.is_signed(covered(config, code["names"]), code["signature"], key):
        return ""
    same_key = code.get("key") == signing.fingerprint(key)
    return (
        "was changed after it was signed" if same_key else "was signed with another key: by someone else, or elsewhere"
    )


# The decision


def admit(
    run_dir: str | Path | None,
    config: Mapping[str, Any],
    trusted: Collection[str] = (),
    parts: Collection[str] = (*PARTS, WANDB),
    file: str | Path | None = None,
) -> None:
    """Refuses a configuration if these parts of it name code that the user has neither signed nor trusted by name.

    What is admitted can be imported afterwards: a signed module from the file that it was trained with, one of
    `trusted` from the Python path or the working directory. Nothing in the run directory ever is.

    `file` is where the configuration was read from, if not from the config.json of `run_dir`. A file that lies in no
    run directory has none.
    """
    if run_dir is not None:
        named_modules.exclude(run_dir)
    known = [name.path for name in names_in(config)]
    for name in trusted:
        if name not in known:
            needs = _some([name.path for name in names_in(config) if not is_registered(name)])
            raise UserError(
                f"--trust {name}: {file or run_dir} does not name it; what needs trust there: {needs}",
                page="run-directory#whose-code-is-executed",
            )
    where = file or f"{run_dir}/config.json"
    own = [name for name in names_in(config, parts) if not is_registered(name)]
    unsigned = unsigned_because(config) if own else ""
    refused = []
    for name in own:
        _check_outside(run_dir, name, where)
        if name.path in trusted or is_held(name):
            continue
        if unsigned:
            refused.append(name)
        else:
            _take_from_recorded(run_dir, name, where, config["code"]["names"].get(name.path))
    if refused:
        would = _some([f"{name.path[:LONGEST]} ({_would(name)[:LONGEST]})" for name in refused])
        flags = " ".join(map(_flag, refused[:SHOWN]))
        raise UserError(
            f"{where} names code that would be executed, and it {unsigned}: {would}. If you "
            f"know that code and trust it, name it in trust=[...] in Python, or add: {flags}",
            page="run-directory#whose-code-is-executed",
        )


def _flag(name: Name) -> str:
    """The flag that trusts a name, quoted for a shell: the name may be untrusted, and a user may copy it."""
    return f"--trust {shlex.quote(name.path[:LONGEST])}"


def _check_outside(run_dir: str | Path | None, name: Name, where: str | Path, file: str | None = None) -> None:
    file = file or (name.module if name.module.endswith(".py") else None)
    if run_dir is not None and file is not None and named_modules.is_inside(file, str(run_dir)):
        raise UserError(
            f"{where} names the script '{file}', which lies in the run's own directory: a run is data, "
            "and nothing in it is executed; move the script elsewhere and change its path there",
            page="run-directory#whose-code-is-executed",
        )


def _would(name: Name) -> str:
    module = name.module
    if name.role == "env":
        return "a text that the environment may take for a file"
    if name.role == WANDB:
        return "it would be shown at Weights & Biases, with your account"
    if module == "__main__":
        return "of this session"
    file = module if module.endswith(".py") else named_modules.file_of(module)
    if file is None or not os.path.isfile(file):
        return f"{module} is not found here"
    return f"from {file}"


def _take_from_recorded(run_dir: str | Path | None, name: Name, where: str | Path, source: Any) -> None:
    """Allows a signed name's module to be imported, only from the file that it was trained with."""
    file, root = (source.get(key) if isinstance(source, Mapping) else None for key in ("file", "root"))
    if not isinstance(file, str) or not isinstance(root, str):
        return  # no module was loaded for it: one defined in an interactive session, or a text that is no path at all
    _check_outside(run_dir, name, where, file)
    module = name.module
    if module.endswith(".py"):
        return  # imported by its path: a missing file has its own error
    now = named_modules.file_of(module) if _is_found(module) else None
    if now is not None and (_is_same(now, file) or (_is_installed(now) and _is_installed(file))):
        return
    remedy = f"--trust {name.path} takes the one that Python finds now"
    if now is not None:
        raise UserError(
            f"{name.path} was trained with {file}, and Python now finds {now} under that name; {remedy}",
            page="run-directory#whose-code-is-executed",
        )
    if not os.path.isfile(file):
        raise UserError(
            f"{name.path} was trained with {file}, which is not there any more; put it back, or, where '{module}' is "
            f"on the Python path or in the current directory now, add --trust {name.path}"
        )
    named_modules.name(module, root)
    if not _is_found(module) or not _is_same(named_modules.file_of(module) or "", file):
        raise UserError(f"{name.path} was trained with {file}, which cannot be imported as '{module}' any more")


def _is_same(file: str, other: str) -> bool:
    return os.path.realpath(file) == os.path.realpath(other)


def _is_found(module: str) -> bool:
    """Whether Python finds a module without the working directory."""
    top = module.partition(".")[0]
    return top in sys.modules or importlib.util.find_spec(top) is not None


def _some(texts: Collection[str]) -> str:
    more = f" and {len(texts) - SHOWN} more" if len(texts) > SHOWN else ""
    return ", ".join(text[: 2 * LONGEST] for text in list(texts)[:SHOWN]) + more if texts else "none"
