"""Interface of an engine, which runs the processes of jobs, and the environment variables that these may have."""

import os
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from tcnn.training.launch.exchange import Placement  # loads pydantic, which a confined process does without


class Process(Protocol):
    """A job's process. None of these waits."""

    def poll(self) -> int | None:
        """The exit code, −N if signal N ended it, or None while it runs."""
        ...

    def terminate(self) -> None:
        """Ask it to save what it has and leave."""
        ...

    def memory(self, most: int) -> int:
        """Bytes that it and its descendants take on this host, exact if more than `most`; 0 if that is not known."""
        ...

    def kill(self) -> None:
        """End it and every process that it has started."""
        ...


class Engine(Protocol):
    """Starts processes."""

    def start(self, directory: Path, gpus: Sequence[str]) -> Process:
        """Start the process of the attempt that was written to `directory`; none but these GPUs are its own."""
        ...

    def placement(self, num_workers: int) -> "Placement":
        """Where the training of a job goes that asks for so many processes."""
        ...


PASSED = (
    # Who and where.
    *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "TMPDIR", "TEMP", "TMP", "TZ", "LANG", "LANGUAGE", "LC_*", "TERM"),
    # How programs are found and loaded.
    *("PYTHON*", "VIRTUAL_ENV", "CONDA_PREFIX", "LD_LIBRARY_PATH", "LD_PRELOAD", "NIX_*", "COVERAGE_*"),
    # Caches, and how they are reached; proxies and certificates of the network.
    *("XDG_*", "HF_HOME", "HF_HUB_*", "HF_DATASETS_*", "HF_ENDPOINT", "HUGGINGFACE_HUB_CACHE", "TRANSFORMERS_CACHE"),
    *("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "all_proxy", "no_proxy"),
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"),
    # Where a store of data sets is; a profile names keys and is none.
    *("AWS_PROFILE", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL*", "AWS_CA_BUNDLE", "AWS_CONFIG_FILE"),
    *("AWS_SHARED_CREDENTIALS_FILE", "AWS_EC2_METADATA_*", "FSSPEC_CONFIG_DIR"),
    # Processors and GPUs.
    *("OMP_*", "GOMP_*", "KMP_*", "MKL_*", "OPENBLAS_*", "NUMEXPR_*", "DNNL_*", "ONEDNN_*", "MALLOC_*"),
    *("GLIBC_TUNABLES", "CC", "CXX", "CUDA_*", "NVIDIA_*", "CUBLAS_*", "CUDNN_*", "NCCL_*", "GLOO_*", "UCX_*"),
    *("TORCH_*", "TORCHINDUCTOR_*", "PYTORCH_*", "TRITON_*", "ROCR_*", "HIP_*", "HSA_*", "RAY_*"),
    *("TCNN_ATTENTION", "TCNN_TEST_DATA"),
)
"""Patterns of names. Everything else stays with the service: nobody can list the names of all secrets."""
REFUSED = ("*TOKEN*", "*SECRET*", "*PASSWORD*", "*PASSWD*", "*CREDENTIAL*", "*API_KEY*", "*ACCESS_KEY*")
"""Of those that match, these are not passed on either, unless the configuration names them."""
FILES = ("AWS_SHARED_CREDENTIALS_FILE",)
"""Names of files, which are no secrets."""


def environment(also: Iterable[str] = (), given: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment of a job's process: what `PASSED` names, and what matches the patterns of `also`."""
    named = tuple(also)
    return {name: value for name, value in given.items() if _matches(name, named) or _passed(name)}


def _passed(name: str) -> bool:
    return name in FILES or (_matches(name, PASSED) and not _matches(name.upper(), REFUSED))


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)
