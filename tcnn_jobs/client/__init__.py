"""A client of the HTTP service."""

try:
    from tcnn_jobs.client.client import Client as Client
except ModuleNotFoundError as error:
    if str(error.name).partition(".")[0] in ("tcnn", "tcnn_jobs"):
        raise
    raise ModuleNotFoundError(
        f'tcnn_jobs.client needs {error.name}, not installed: pip install "tcnn[serve]"', name=error.name
    ) from error
