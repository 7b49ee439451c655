"""What tests of workers and webhooks share."""

from collections.abc import Iterator

import pytest
from receiving import Receiver


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()
    yield receiver
    receiver.close()
