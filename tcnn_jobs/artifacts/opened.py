"""The artifact storage that the settings name: local or shared."""

from tcnn_jobs.artifacts.bucket import Bucket
from tcnn_jobs.artifacts.cache import Cache
from tcnn_jobs.artifacts.local import LocalArtifacts
from tcnn_jobs.artifacts.shared import SharedArtifacts
from tcnn_jobs.home import Home
from tcnn_jobs.settings import QueueSettings

FASTER = 10.0
"""By how much sooner than a job a transfer is tried again: it has less to repeat."""


def home_of(settings: QueueSettings) -> Home:
    """The `Home` of the settings; no directory is created yet."""
    return Home(settings.root, shared=settings.artifacts is not None)


def open_artifacts(settings: QueueSettings, home: Home) -> LocalArtifacts | SharedArtifacts:
    """Open the configured storage; raises `RequestError` for its URL, `EnvironmentFailure` without its library."""
    if settings.artifacts is None:
        return LocalArtifacts(home)
    bucket = Bucket(settings.artifacts, settings.retry_delay / FASTER)
    return SharedArtifacts(home, bucket, Cache(home.cache, settings.cache_gb * 1e9))
