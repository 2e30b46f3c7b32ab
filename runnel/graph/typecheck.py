"""The types of values before anything runs, by `jax.eval_shape`, and errors where they are not as expected."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from runnel.errors import UserError
from runnel.types import PyTree, Space, space_map

Type = jax.ShapeDtypeStruct


def typed(function: Callable[..., Any], *args: Any, what: str) -> Any:
    """`jax.eval_shape`, with an error that says which of the user's functions failed and where."""
    return traced(function, *args, what=what)[1]


def traced(function: Callable[..., Any], *args: Any, what: str) -> tuple[Any, Any]:
    """The function's jaxpr, and the types of its result."""
    try:
        return jax.make_jaxpr(function, return_shape=True)(*args)
    except UserError:
        raise
    except Exception as error:
        frames = [f for f in traceback.extract_tb(error.__traceback__) if "site-packages" not in f.filename]
        where = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
        reason = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise UserError(
            f"{what} fails on values of the shapes it would get{where}: {reason}", page="write-an-algorithm#errors"
        ) from error


def check_takes(function: Callable[..., Any], what: str, *names: str, optional: Sequence[str] = ()) -> None:
    """Refuses a method of the user that cannot be called with these arguments, and says where it is defined.

    `optional`: arguments that it receives by keyword, if it names them.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # it has no signature to look at: the call will show it
        return
    try:
        signature.bind(*names, **{name: name for name in optional if name in signature.parameters})
    except TypeError as problem:
        code = getattr(inspect.unwrap(function), "__code__", None)
        where = f" ({code.co_filename}:{code.co_firstlineno})" if code else ""
        wanted, name = ", ".join(names), what.rpartition(".")[2]
        raise UserError(
            f"{what}{where}: found {name}{signature}, expected {name}({wanted}); write `def {name}(self, {wanted})`"
        ) from problem


def space_type(space: Space, *leading: int) -> PyTree:
    """The types of values of a space, with leading axes."""
    return space_map(lambda leaf: Type((*leading, *leaf.shape), leaf.dtype), space)


def batched(tree: PyTree, *leading: int) -> PyTree:
    return jax.tree.map(lambda x: Type((*leading, *x.shape), x.dtype), tree)


def describe(tree: PyTree) -> str:
    """A tree's types in a few words: `{'a': float32[3], 'b': int32[]}`."""
    return str(jax.tree.map(lambda x: _Word(f"{jnp.dtype(x.dtype)}{list(x.shape)}"), tree))


def same_types(wanted: PyTree, found: PyTree, what: str) -> None:
    """Refuses values of another structure, shape or dtype, such as a state that changes from step to step."""
    if jax.tree.structure(wanted) != jax.tree.structure(found):
        raise UserError(f"{what} of another structure: found {describe(found)}, expected {describe(wanted)}")
    leaves = zip(jax.tree.leaves_with_path(wanted), jax.tree.leaves(found), strict=True)
    for (path, want), have in leaves:
        if (want.shape, want.dtype) != (have.shape, have.dtype):
            where = jax.tree_util.keystr(path)
            of = f" whose {where}" if where else " that"
            raise UserError(f"{what}{of} is {describe(have)}; expected {describe(want)}")


class _Word(str):
    __repr__ = str.__str__
