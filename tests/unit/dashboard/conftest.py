import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient
from world import Browser, World


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.close()


@pytest.fixture
def http(world: World) -> Iterator[TestClient]:
    with TestClient(world.app, raise_server_exceptions=False) as client:
        world.loop = client.portal.call(_loop)
        yield client


async def _loop() -> asyncio.AbstractEventLoop:
    return asyncio.get_running_loop()


@pytest.fixture
def login(world: World, http: TestClient) -> Callable[[str], Browser]:
    return lambda user: Browser(http, user, world.tokens[user])
