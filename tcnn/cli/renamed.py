"""Options that had another name: the old one works for one release, and says so."""

import typer


def processes(nproc: int | None, num_workers: int | None) -> int:
    """Processes of `--nproc`, or of `--num-workers`, its name until 0.1; raises `RequestError` if both are given."""
    from tcnn.errors import RequestError

    if num_workers is None:
        return nproc or 1
    if nproc is not None:
        raise RequestError("--num-workers: is the old name of --nproc; give --nproc alone")
    typer.echo("--num-workers is called --nproc now; the old name goes with 0.2 (loaders are --workers)", err=True)
    return num_workers
