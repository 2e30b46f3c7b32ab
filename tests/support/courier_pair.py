"""Two couriers and the streams between them, both hosts here."""

import itertools
from collections.abc import Sequence
from typing import Any

from tcp_hosts import until
from tcp_proxy import Proxy
from transport_peers import PLAIN

from runnel.transport import parameter_store, shared_memory
from runnel.transport.courier import Courier, Sends, Takes
from runnel.transport.courier import Peer as Host
from runnel.transport.curve import new_keys
from runnel.transport.ring import RingReader, RingWriter
from runnel.transport.stream import Field, Schema

LARGE: Schema = (Field((1 << 18,), "<f4"), Field((), "<i8"))
FRAMES: Schema = (Field((84, 84, 4), "|u1"), Field((), "<i8"))


class CourierPair:
    """CourierPair hosts here, with proxies between them if asked for, and streams from the first to the second."""

    def __init__(self, streams: int = 1, schema: Schema = PLAIN, slots: int = 3, proxies: bool = False) -> None:
        self.keys = new_keys(), new_keys()
        self.couriers = Courier("a", self.keys[0]), Courier("b", self.keys[1])
        self.proxies = [Proxy(courier.address) for courier in self.couriers] if proxies else []
        self.near = [shared_memory.create(schema, slots) for _ in range(streams)]
        self.far = [shared_memory.create(schema, slots) for _ in range(streams)]
        self.bells = [(shared_memory.SharedBell.create(), shared_memory.SharedBell.create()) for _ in range(streams)]
        self.stores: list[parameter_store.SharedStore] = []
        self.epoch = 0

    def hosts(self) -> tuple[Host, Host]:
        places = self.proxies or self.couriers
        first, second = (Host(place.address, keys.public) for place, keys in zip(places, self.keys, strict=True))
        return first, second

    def join(self, bounds: tuple[int, ...] = (), start: bool = True, **more: Sequence[Any]) -> None:
        """`more`: stores that the first mirrors of the second."""
        a, b = self.couriers
        at_a, at_b = self.hosts()
        self.epoch += 1
        b.join(
            {"a": at_a},
            takes=self.takes(bounds),
            publishes=more.get("publishes", ()),
            epoch=self.epoch,
        )  # fmt: skip
        a.join(
            {"b": at_b},
            sends=[Sends(i, "test", ring, "b", self.bells[i][0]) for i, ring in enumerate(self.near)],
            mirrors=more.get("mirrors", ()),
            epoch=self.epoch,
        )
        if start:
            a.start()
            b.start()

    def takes(self, bounds: tuple[int, ...] = ()) -> list[Takes]:
        """What the second takes from the first."""
        return [Takes(i, "test", ring, "a", self.bells[i][1], bounds) for i, ring in enumerate(self.far)]

    def writer(self, i: int = 0) -> RingWriter:
        return self.near[i].writer(self.bells[i][0], self.couriers[0].bell)

    def reader(self, i: int = 0) -> RingReader:
        return self.far[i].reader(self.bells[i][1], self.couriers[1].bell)

    def until(self, true: Any) -> None:
        until(true, *self.couriers)

    def close(self) -> None:
        for each in self.couriers:
            each.close()
            assert each.failed is None
        for each in (*self.proxies, *self.near, *self.far, *self.stores, *itertools.chain(*self.bells)):
            each.close()
