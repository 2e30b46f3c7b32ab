"""Convolutions on CPUs: the same numbers in every layout, and the fast kernel inside and outside of loops."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax
from toys import TellsConvolutions

import runnel
from runnel.config.jax_config import configure_jax
from runnel.nn import NatureCNN
from runnel.recording.metrics import read_metrics

FAST = "b01f_01io->b01f"


@pytest.fixture(scope="module", autouse=True)
def configured():
    configure_jax()


def convolutions(compiled) -> list[str]:
    """The layouts of all convolutions of a compiled program."""
    text = compiled.as_text()
    found = re.findall(r" convolution\(.*dim_labels=([^,\s]+)", text)
    assert len(found) == len(re.findall(r" convolution\(", text))
    return found


def step(params, images):
    """One gradient step, which needs the gradients by the images of the second and third convolution, too."""
    network = NatureCNN(features=8)

    def loss(params):
        return jnp.square(jax.vmap(lambda image: network.apply(params, image))(images)).mean()

    return jax.tree.map(lambda p, g: p - 0.1 * g, params, jax.grad(loss)(params))


LOOPS = {
    "alone": lambda params, batches: step(params, batches[0]),
    "scan": lambda params, batches: lax.scan(lambda p, b: (step(p, b), None), params, batches)[0],
    "while": lambda params, batches: lax.while_loop(
        lambda c: c[1] < 2, lambda c: (step(step(c[0], batches[0]), batches[1]), c[1] + 1), (params, 0)
    )[0],
    "nested": lambda params, batches: lax.fori_loop(
        0, 2, lambda _, p: lax.scan(lambda p, b: (step(p, b), None), p, batches)[0], params
    ),
}


@pytest.mark.parametrize("loop", LOOPS)
def test_training_a_cnn_uses_the_fast_layout_in_every_loop(loop):
    batches = jnp.zeros((2, 3, 60, 60, 2))
    params = NatureCNN(features=8).init(jax.random.key(0), batches[0, 0])
    found = convolutions(jax.jit(LOOPS[loop]).lower(params, batches).compile())
    assert len(found) >= 8  # three forward, three by kernels, two by inputs
    assert set(found) == {FAST}


LAYOUTS = [("NHWC", "HWIO", "NHWC"), ("NCHW", "OIHW", "NCHW"), ("CHWN", "IHWO", "HWNC"), ("HWNC", "OHWI", "CNHW")]


def test_a_loop_in_bf16_uses_the_fast_layout_too():
    narrow = jnp.bfloat16
    kernel, images = jnp.ones((3, 3, 2, 4)), jnp.ones((2, 8, 8, 2))

    def loss(kernel, images):
        dims = lax.conv_dimension_numbers(images.shape, kernel.shape, ("NHWC", "HWIO", "NHWC"))
        found = lax.conv_general_dilated(
            images.astype(narrow), kernel.astype(narrow), (1, 1), "VALID", dimension_numbers=dims
        )
        return found.astype(jnp.float32).sum()

    def body(kernel, _):
        return kernel - jax.grad(loss)(kernel, images), None

    compiled = jax.jit(lambda kernel: lax.scan(body, kernel, None, 3)[0]).lower(kernel).compile()
    assert set(convolutions(compiled)) == {FAST}
    np.testing.assert_array_equal(compiled(kernel), 1 - 3 * 2 * 36 * jnp.ones_like(kernel))


@settings(max_examples=12, deadline=None)
@given(
    layout=st.sampled_from(LAYOUTS),
    stride=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    pad=st.tuples(*[st.tuples(st.integers(0, 2), st.integers(0, 2))] * 2),
    dilation=st.sampled_from([(1, 1), (2, 1), (2, 3)]),
    kernel_dilation=st.sampled_from([(1, 1), (1, 2), (2, 2)]),
    groups=st.sampled_from([(1, 1), (2, 1), (1, 2)]),
    seed=st.integers(0, 2**16),
)
def test_every_layout_gives_the_numbers_of_the_definition(layout, stride, pad, dilation, kernel_dilation, groups, seed):
    rng = np.random.default_rng(seed)
    by_feature, by_batch = groups
    images = rng.standard_normal((2, 7, 6, 4)).astype(np.float32)
    kernel = rng.standard_normal((3, 2, 4 // by_feature, 4)).astype(np.float32)
    lhs, rhs, out = (_order(a, b) for a, b in zip(("NHWC", "HWIO", "NHWC"), layout, strict=True))
    found = jax.jit(
        lambda x, k: lax.conv_general_dilated(
            x, k, stride, pad, dilation, kernel_dilation, layout, by_feature, by_batch
        )
    )(images.transpose(lhs), kernel.transpose(rhs))
    wanted = defined(images, kernel, stride, pad, dilation, kernel_dilation, by_feature, by_batch)
    np.testing.assert_allclose(found, wanted.transpose(out), rtol=1e-4, atol=1e-4)


def _order(source: str, target: str) -> list[int]:
    return [source.index(letter) for letter in target]


def defined(images, kernel, stride, pad, dilation, kernel_dilation, by_feature, by_batch):
    """A convolution as its definition says it, one output at a time."""
    spread = np.zeros((len(images), *[(n - 1) * d + 1 for n, d in zip(images.shape[1:3], dilation, strict=True)], 4))
    spread[:, :: dilation[0], :: dilation[1]] = images
    spread = np.pad(spread, ((0, 0), *pad, (0, 0)))
    holes = [(n - 1) * d + 1 for n, d in zip(kernel.shape[:2], kernel_dilation, strict=True)]
    size = [max(0, (spread.shape[i + 1] - holes[i]) // stride[i] + 1) for i in (0, 1)]
    batch, outputs = len(images) // by_batch, kernel.shape[-1]
    result = np.zeros((batch, *size, outputs))
    each = outputs // (by_feature * by_batch)
    width = kernel.shape[2]
    for o in range(outputs):
        part = o // each
        rows = spread[part * batch : (part + 1) * batch] if by_batch > 1 else spread
        rows = rows[..., part * width : (part + 1) * width] if by_feature > 1 else rows
        for i, j in np.ndindex(*size):
            window = rows[
                :,
                i * stride[0] : i * stride[0] + holes[0] : kernel_dilation[0],
                j * stride[1] : j * stride[1] + holes[1] : kernel_dilation[1],
            ]
            result[:, i, j, o] = np.einsum("bhwc,hwc->b", window, kernel[..., o])
    return result


@pytest.mark.parametrize("distribution", ["fused", "coarse"])
def test_learners_use_it_in_the_users_process_and_in_workers(distribution, tmp_path):
    runnel.train(TellsConvolutions(), "toys:Corridor", distribution, envs=4, steps=64, run_dir=tmp_path, quiet=True)
    told = [line["learn/fast"] for line in read_metrics(tmp_path) if "learn/fast" in line]
    assert set(told) == {1}
