"""Schema migrations by Alembic: upgrade a database, and tell whether it is up to date."""

import sqlite3
import time
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import Connection, inspect, select, text
from sqlalchemy import exc as sql

from tcnn.errors import one_line
from tcnn_jobs.database.engine import Database
from tcnn_jobs.database.schema import compatibility, identity
from tcnn_jobs.errors import StoreUnavailable

if TYPE_CHECKING:
    from alembic.config import Config

_SCRIPTS = Path(__file__).parent.parent / "migrations"
_LOCK = 7_239_105_441  # any number that other programs are unlikely to lock
_NAP = 0.02
_EXISTS = ("42P07", "42701")  # PostgreSQL's words for a table and a column
LONGEST = 3600.0
"""Seconds that another process's migration is waited for, and any step of our own: a large table takes its time."""


class Upgrade(Database):
    """Migrations of a database, without a configuration file of Alembic's."""

    def migrate(self) -> None:
        """Make the tables, or change them to what this version needs; raises `StoreUnavailable`.

        Several processes may call this at once: one does it in one transaction, the others wait and find it done.
        """
        from alembic import command
        from alembic.util import CommandError

        if self.is_sqlite:
            self._use_wal()
        else:
            self._refuse_encoding()
        if self._is_usable():
            return
        with self.writing(wait=LONGEST) as connection:
            if not self.is_sqlite:
                connection.execute(text("SET LOCAL statement_timeout = 0"))
                self._take_turn(connection)
            before = revision(connection)
            try:
                command.upgrade(alembic_config(connection), "head")
            except CommandError as error:
                raise StoreUnavailable(
                    f"{self.place}: this version of tcnn does not know its schema, {revision(connection)}; "
                    "use the version that made it, or a newer one"
                ) from error
            except sql.DBAPIError as error:
                raise StoreUnavailable(
                    f"{self.place}: its schema cannot be brought up to date ({one_line(error.orig or error)}); "
                    f"nothing was changed; {_remedy(error, before)}"
                ) from error

    def identity(self) -> str:
        """The id that tells this database from all others, and that its copies share; raises `StoreUnavailable`."""
        with self.reading() as connection:
            return self._identity(connection)

    def _identity(self, connection: Connection) -> str:
        found = connection.scalar(select(identity.c.id))
        if found is None:
            raise StoreUnavailable(f"{self.place}: the database has no id yet; wait until it is restored")
        return found

    def _is_usable(self) -> bool:
        """Whether there is nothing to do, so that nobody is waited for."""
        with self.reading() as connection:
            return fits(connection, revision(connection))

    def _refuse_encoding(self) -> None:
        """PostgreSQL converts texts to the encoding of its database, and has no place for most in another one."""
        with self.reading() as connection:
            found = connection.scalar(text("SHOW server_encoding"))
        if found != "UTF8":
            raise StoreUnavailable(
                f"{self.place}: expected a database in UTF8, for names are in any language, found {found}; "
                "create it with ENCODING 'UTF8' TEMPLATE template0"
            )

    def _take_turn(self, connection: Connection) -> None:
        """Look again and again: one long wait could not be told from a server that is frozen."""
        deadline = time.monotonic() + LONGEST
        while not connection.scalar(text("SELECT pg_try_advisory_xact_lock(:lock)"), {"lock": _LOCK}):
            if time.monotonic() > deadline:
                raise StoreUnavailable(f"{self.place}: another process has been changing the schema for {LONGEST:g} s")
            time.sleep(_NAP * 5)

    def _use_wal(self) -> None:
        """Said once, a file keeps it. SQLite does not wait for other processes here, so this does."""
        deadline = time.monotonic() + LONGEST
        while True:
            try:
                file = sqlite3.connect(self.url.database or "", timeout=self.wait)
                try:
                    file.execute("PRAGMA journal_mode = WAL")
                finally:
                    file.close()
                return
            except sqlite3.DatabaseError as error:
                if "locked" not in str(error) or time.monotonic() > deadline:
                    raise StoreUnavailable(
                        f"{self.place}: the database cannot be used ({error}); try again when it can"
                    ) from error
                time.sleep(_NAP)


def alembic_config(connection: Connection | None = None) -> "Config":
    """Alembic's configuration: the folder of the revisions, and the connection whose transaction it uses."""
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(_SCRIPTS).replace("%", "%%"))
    config.attributes["connection"] = connection
    return config


@cache
def head() -> str:
    """The newest revision that this version knows."""
    from alembic.script import ScriptDirectory

    return ScriptDirectory.from_config(alembic_config()).get_current_head() or ""


@cache
def _known() -> frozenset[str]:
    from alembic.script import ScriptDirectory

    return frozenset(script.revision for script in ScriptDirectory.from_config(alembic_config()).walk_revisions())


def _remedy(error: sql.DBAPIError, before: str | None) -> str:
    """What to do about a migration that failed, of a database with this revision."""
    state, said = getattr(error.orig, "sqlstate", None), str(error.orig)
    if before is None:
        return "give this user a database of its own"
    if state in _EXISTS or (state is None and ("already exists" in said or "duplicate column" in said)):
        return (
            f"its tables are of revision {before}, but tables of a newer release are there, too: "
            "restore the backup into an empty database"
        )
    return "mend that, and start tcnn again"


def fits(connection: Connection, found: str | None) -> bool:
    """Whether the tables are ours, or a newer version's that has only added to them: while a service is brought up to
    date host by host, the version before works beside the new one."""
    if found is None or found == head() or found in _known():
        return found == head()
    oldest = connection.scalar(select(compatibility.c.oldest))
    return oldest is not None and oldest <= head()


def revision(connection: Connection) -> str | None:
    """The revision of the tables that are there; None if there are none."""
    if not inspect(connection).has_table("alembic_version"):
        return None
    return connection.scalar(text("SELECT version_num FROM alembic_version"))
