"""Webhook calls that are due. The transaction that ends a job makes a row; it goes when the call has been made."""

from sqlalchemy import delete, select, update

from tcnn_jobs.database.engine import Database
from tcnn_jobs.database.schema import deliveries, tenants
from tcnn_jobs.database.types import now
from tcnn_jobs.model.jobs import Delivery


class Deliveries(Database):
    """Outbox of webhook calls, delivered at least once: a call of a worker that dies is made again by another."""

    def due_deliveries(self, limit: int = 10, lease: float = 60) -> list[Delivery]:
        """Calls to make now; nobody else gets them within `lease` seconds. `attempt` counts from 1."""
        due = select(deliveries.c.id).where(deliveries.c.due_at <= now())
        with self.reading() as connection:  # almost always there is nothing, and then nobody is kept waiting
            if connection.scalar(due.limit(1)) is None:
                return []
        with self.writing() as connection:
            taken = due.order_by(deliveries.c.due_at).limit(limit).with_for_update(skip_locked=True)
            rows = connection.execute(
                update(deliveries)
                .where(deliveries.c.id.in_(connection.scalars(taken).all()))
                .values(attempt=deliveries.c.attempt + 1, due_at=now() + lease)
                .returning(deliveries)
            ).all()
            own = tenants.c.webhook_secret.is_not(None) & tenants.c.name.in_({row.tenant for row in rows if row.tenant})
            query = select(tenants.c.name, tenants.c.webhook_secret).where(own)
            secrets = {row.name: row.webhook_secret for row in connection.execute(query)}
        return [
            Delivery(
                id=row.id, job=row.job, url=row.url, body=row.body, attempt=row.attempt, secret=secrets.get(row.tenant)
            )
            for row in rows
        ]

    def delivered(self, id: str) -> None:
        """Remove a call that was made."""
        with self.writing() as connection:
            connection.execute(delete(deliveries).where(deliveries.c.id == id))

    def delivery_failed(self, id: str, retry_after: float | None) -> None:
        """Reschedule a call that failed, in so many seconds, or give it up (None)."""
        if retry_after is None:
            return self.delivered(id)
        with self.writing() as connection:
            connection.execute(update(deliveries).where(deliveries.c.id == id).values(due_at=now() + retry_after))
        return None
