"""`roster prepare`: what is made once for a machine or an image, so that applications start sooner."""

import time

import click

from roster.cli.errors import Failure, UserError, one_line
from roster.pipeline.errors import PipelineError
from roster.records import native
from roster.spark.spark_session import archive_path, check_java, java_program, make_archive


@click.command(short_help="Make what applications on this machine start sooner with.")
def prepare() -> None:
    """Compile the loops that read and write records, and archive the classes of Spark's JVM (about 180 MB).

    Both are kept in $XDG_CACHE_HOME/roster, by default ~/.cache/roster, for this Java, PySpark and processor. A session
    of `roster.spark.session` that finds the archive starts with half the CPU. Run it while an image is built, as the
    user who runs the application, and again after an update.
    """
    for loops in native.ALL:
        native.compiled(loops)
    click.echo(f"loops: compiled, in {native.cache_folder()}")
    try:
        check_java()
        path = archive_path(java_program())
        if path is None:
            raise UserError("XDG_CACHE_HOME: there is no home directory to keep an archive in; name a folder")
        if path.exists():
            click.echo(f"classes: in {path} already")
            return
        click.echo("classes: starting Spark once to see which ones it loads, half a minute")
        began = time.monotonic()
        make_archive(path)
    except (PipelineError, OSError) as error:
        raise Failure(one_line(error)) from error
    click.echo(f"classes: {path.stat().st_size >> 20} MB in {path} after {time.monotonic() - began:.0f} s")
