"""Networks are chosen by the observation, and compute in JAX's default float."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from runnel.errors import UserError
from runnel.nn import MLP, MinAtarCNN, NatureCNN, Network, network_for
from runnel.nn.networks import Flat, Image, OneHot, encoding_of, resolve
from runnel.types import Box, Discrete, MultiDiscrete, zeros

BYTE = np.dtype(np.uint8)


def features_of(network, observation):
    return network.apply(network.init(jax.random.key(0), observation), observation)


@pytest.mark.parametrize(
    ("space", "wanted"),
    [
        (Box((4,)), Flat(1.0)),
        (Box((10, 10, 4), np.dtype(np.bool_)), Flat(1.0)),  # MinAtar: too small for convolutions
        (Box((128,), BYTE, 0, 255), Flat(1 / 255)),
        (Box((84, 84, 4), BYTE, 0, 255), Image(False, 1 / 255)),
        (Box((4, 84, 84), BYTE, 0, 255), Image(True, 1 / 255)),
        (Box((84, 84), BYTE, 0, 255), Image(False, 1 / 255)),
        (Box((36, 36, 3)), Image(False, 1.0)),
        (Box((35, 36, 3)), Flat(1.0)),
        (Discrete(5), OneHot((5,))),
        (MultiDiscrete((2, 3)), OneHot((2, 3))),
    ],
)
def test_encoding_of_each_kind(space, wanted):
    assert encoding_of(space) == wanted


def test_small_observations_go_through_hidden_layers():
    space = Box((10, 10, 4), np.dtype(np.bool_))
    assert features_of(network_for(space, (32, 16)), zeros(space)).shape == (16,)


@pytest.mark.parametrize("shape", [(84, 84, 4), (4, 84, 84), (84, 84), (36, 36, 3)])
def test_images_go_through_convolutions(shape):
    space = Box(shape, BYTE, 0, 255)
    assert features_of(network_for(space), zeros(space)).shape == (512,)


def test_the_network_of_small_grids_is_a_convolution():
    grid = np.random.default_rng(0).random((10, 10, 4)) < 0.2
    network = resolve("runnel.nn:MinAtarCNN", Box((10, 10, 4), np.dtype(np.bool_)), (), "relu")
    params = network.init(jax.random.key(0), grid)
    assert network.apply(params, grid).shape == (128,)
    first = params["params"]["Dense_0"]
    kernel = first["kernel"].reshape(3, 3, 4, 16)  # [H, W, in, out], as convolutions have it
    cells = jax.lax.conv_general_dilated(
        grid[None].astype(np.float32), kernel, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    alone = MinAtarCNN(features=1).apply({"params": {**params["params"], "Dense_1": _sum(8 * 8 * 16)}}, grid)
    np.testing.assert_allclose(alone, [jax.nn.relu(cells + first["bias"]).sum()], rtol=1e-4)


def _sum(size):
    """A layer of one output, the sum of its inputs."""
    return {"kernel": jnp.ones((size, 1)), "bias": jnp.zeros(1)}


def test_channel_order_does_not_matter():
    image = np.random.default_rng(0).integers(0, 256, (40, 40, 4), np.uint8)
    last, first = network_for(Box((40, 40, 4), BYTE, 0, 255)), network_for(Box((4, 40, 40), BYTE, 0, 255))
    params = last.init(jax.random.key(0), image)
    np.testing.assert_allclose(
        last.apply(params, image), first.apply(params, np.moveaxis(image, -1, 0)), rtol=1e-5, atol=1e-6
    )


def test_bytes_are_scaled():
    black = white = jnp.zeros(3, jnp.uint8)
    white = white + 255
    assert Flat(1 / 255)(black).max() == 0
    np.testing.assert_allclose(Flat(1 / 255)(white), 1.0, rtol=1e-6)


def test_trees_are_encoded_leaf_by_leaf():
    space = {
        "place": Box((2,)),
        "what": Discrete(3),
        "both": (MultiDiscrete((2, 4)), Box((40, 40, 3), BYTE, 0, 255)),
    }
    observation = {
        "place": np.ones(2),
        "what": np.int32(1),
        "both": (np.array([1, 3]), np.zeros((40, 40, 3), BYTE)),
    }
    network = network_for(space, (7,))
    params = network.init(jax.random.key(0), observation)
    assert network.apply(params, observation).shape == (7,)
    inputs = params["params"]["MLP_0"]["Dense_0"]["kernel"].shape[0]
    assert inputs == 2 + 3 + (2 + 4) + 512


def test_one_hots():
    np.testing.assert_array_equal(OneHot((3,))(jnp.int32(2)), [0, 0, 1])
    np.testing.assert_array_equal(OneHot((2, 3))(jnp.array([1, 0])), [0, 1, 1, 0, 0])


@pytest.mark.parametrize("network", [MLP((8,)), NatureCNN(8)])
@pytest.mark.parametrize("x64", [False, True])
def test_dtype_follows_jax(network, x64):
    observation = np.zeros((40, 40, 3), np.uint8)
    with jax.enable_x64(x64):
        params = network.init(jax.random.key(0), observation)
        features = network.apply(params, observation)
        wanted = jnp.dtype(jnp.float64 if x64 else jnp.float32)
        assert {x.dtype for x in jax.tree.leaves((params, features))} == {wanted}


def test_networks_of_equal_settings_are_equal():
    """They are part of a pytree's structure, which two processes must agree on."""
    one, other = (network_for({"a": Box((4,)), "b": Discrete(2)}) for _ in range(2))
    assert one == other
    assert hash(one) == hash(other)


def scale(params, observation):
    return params * observation


linear = Network(lambda key, observation: jnp.ones(()), scale)


def test_a_users_network_is_two_functions():
    assert resolve(linear, Box((2,)), (64,), "tanh") is linear
    assert resolve(MLP((3,)), Box((2,)), (64,), "tanh") == MLP((3,))
    assert resolve(None, Box((2,)), (5,), "relu") == network_for(Box((2,)), (5,), "relu")
    assert resolve("runnel.nn:NatureCNN", Box((2,)), (64,), "tanh") == NatureCNN()


@pytest.mark.parametrize(
    ("network", "message"),
    [
        ("nowhere.at_all:thing", "cannot be imported"),
        ("runnel.nn:nothing", "cannot be imported"),
        ("runnel", "cannot be imported"),
        (3, "is an int; it must have `init"),
    ],
)
def test_what_is_no_network_is_refused(network, message):
    with pytest.raises(UserError, match=message):
        resolve(network, Box((2,)), (64,), "tanh")
