"""What the dashboard's first views and the table of runs cost in a browser when many jobs are in the store.

    python -m benchmarks.service.dashboard_scale [--jobs 10000] [--loads 9]

A real server on a SQLite file with so many jobs of one tenant, which have ended, been cancelled, failed or wait, with
settings and results of their own, and Debian's Chromium at 1280×860. Of `#/` and `#/runs`, loaded anew in a context
without a cache: milliseconds from the navigation until the rows are there and the last long task (over 50 ms) is over,
which is when a page counts as interactive; and processor seconds of the page's main thread. Of the runs: how long a
search, an order by a metric and the next page take until their rows stand there. Of scrolling: the longest task of the
main thread while the wheel goes down the table and back, with all columns shown.
"""

import argparse
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, sync_playwright
from sqlalchemy import text

from benchmarks.service.browser import chromium, keep, serving, spread
from tcnn_jobs.model.jobs import Artifact, Claim, Kind, NewJob, Result
from tcnn_jobs.store import Store

RESULTS = Path(__file__).parents[1] / "results" / "dashboard_scale.json"
WATCH = """
window.longTasks = [];
window.seen = null; // when something was there first; looked for at every frame, since the page's policy allows no eval
window.watchFor = (there) => {
  window.seen = null;
  const look = () => (there() ? (window.seen = performance.now()) : requestAnimationFrame(look));
  look();
};
new PerformanceObserver((list) => list.getEntries().forEach((one) => longTasks.push([one.startTime, one.duration])))
  .observe({ type: "longtask", buffered: true });
"""
ROWS = {"#/": ".jobs > li", "#/runs": ".runs tbody tr"}
CONFIG = {
    "epochs": 30, "lr": 5e-4, "batch_size": 64, "size": 224, "weight_decay": 0.05, "mixup": 0.2, "cutmix": 1.0,
    "label_smoothing": 0.1, "warmup_epochs": 3, "anneal_epochs": 10, "ema": 0.999, "seed": 0,
}  # fmt: skip
COLUMNS = (
    "owner, kind, priority, attempt, max_attempts, claim, created_at, not_before, started_at, finished_at, "
    "cancel_requested, event_count, slots, tags"
)


def result() -> Result:
    """As large as that of a job which fine-tunes a ResNet: verification by layer, and sixty numbers."""
    error = {"relative": 2.1e-7, "max_relative": 3.4e-7, "absolute": 1.2e-6}
    layers = [{"name": f"layer4.{n}.conv2", "random": error, "trained": error} for n in range(6)]
    own = {"tolerance": 1e-5, "logits": error, "layers": layers, "passed": True, "top1_agreement": 1.0}
    passes = [{"dtype": dtype, **own} for dtype in ("float64", "float32")]
    files = tuple(
        Artifact(name=name, path=f"j/1/{name}", size=10**8, sha256="0" * 64)
        for name in ("best.safetensors", "last.safetensors", "metrics.jsonl", "config.json", "summary.csv")
    )
    numbers = {f"number_{n}": n / 7 for n in range(56)}
    return Result(
        checkpoint=files[0], files=files, verification={"passed": True, "passes": passes},
        metrics={"top1": 0.5, "top5": 0.9, "train_images": 50_000, "val_images": 5000, **numbers},
    )  # fmt: skip


def fill(store: Store, count: int) -> None:
    """One job is made as its owner and a worker make it, and copied within the database with values of its own."""
    training = {"dataset": "ds_0123456789abcdef01234567", "preset": "quick", "config": CONFIG}
    request = {"model": "resnet50d.ra2_in1k", "stride": "keep", "finetune": training}
    job = store.enqueue(NewJob(owner="local", kind=Kind.TRANSFORM, request=request, tags=("ablation",)))
    taken = store.claim("w")
    assert taken is not None
    store.finish(Claim(job=job.id, worker="w", number=taken.claim), result())
    waits, failed, cancelled = "i % 50 = 0", "i % 17 = 0", "i % 23 = 0"
    error = json.dumps({"code": "diverged", "message": "the loss is no longer finite"})
    changed = (
        f"'{job.id}' || i, 'run ' || i, CASE WHEN {waits} THEN 'queued' WHEN {failed} THEN 'failed' "
        f"WHEN {cancelled} THEN 'cancelled' ELSE 'succeeded' END, "
        "json_set(request, '$.finetune.config.lr', 1e-5 * (1 + i * 7919 % 997), '$.finetune.config.seed', i), "
        f"CASE WHEN {waits} OR {failed} OR {cancelled} THEN NULL ELSE "
        "json_set(result, '$.metrics.top1', (i * 104729 % 9973) / 9973.0) END, "
        f"CASE WHEN {failed} AND NOT {waits} THEN '{error}' END, 'run ' || i || ' ' || words"
    )
    with store.writing(wait=600) as connection:
        connection.execute(
            text(
                f"WITH RECURSIVE n(i) AS (SELECT 2 UNION ALL SELECT i + 1 FROM n WHERE i < {count}) "
                f"INSERT INTO jobs (id, name, status, request, result, error, words, {COLUMNS}) "
                f"SELECT {changed}, {COLUMNS} FROM n, jobs WHERE id = '{job.id}'"
            )
        )


def first_view(browser: Browser, url: str, place: str) -> tuple[float, float]:
    """Milliseconds until it is interactive, and processor seconds of its main thread; in a context of its own."""
    context = browser.new_context(viewport={"width": 1280, "height": 860}, locale="en-GB")
    page = context.new_page()
    page.add_init_script(f"{WATCH}\nwatchFor(() => document.querySelectorAll({json.dumps(ROWS[place])}).length > 10);")
    session = context.new_cdp_session(page)
    session.send("Performance.enable")
    page.goto(f"{url}/{place}", wait_until="commit")
    there = seen(page)
    time.sleep(1.0)  # whatever comes after the rows
    ends = [start + length for start, length in page.evaluate("longTasks")]
    metrics = {one["name"]: one["value"] for one in session.send("Performance.getMetrics")["metrics"]}
    context.close()
    return max([there, *ends]), metrics["TaskDuration"]


def seen(page: Page) -> float:
    """When what is watched for was there, in milliseconds of the page."""
    while (found := page.evaluate("seen")) is None:
        time.sleep(0.02)
    return float(found)


def until(page: Page, act: Any, changed: str) -> float:
    """Milliseconds from something that is done until the page has changed."""
    page.evaluate(
        "() => { const now = () => document.querySelector('.runs tbody'); const before = now().textContent; "
        f"watchFor(() => now().textContent !== before && now().children.length {changed}); }}"
    )
    started = page.evaluate("performance.now()")
    act()
    return seen(page) - float(started)


def runs(browser: Browser, url: str) -> dict[str, Any]:
    """Acts upon the table of runs, and how smoothly it scrolls."""
    context = browser.new_context(viewport={"width": 1280, "height": 860}, locale="en-GB")
    page = context.new_page()
    page.add_init_script(WATCH)
    page.goto(f"{url}/#/runs")
    page.locator(ROWS["#/runs"]).nth(49).wait_for()
    search = page.get_by_role("searchbox")
    found: dict[str, Any] = {
        "search_ms": round(until(page, lambda: search.fill("run 77"), "> 5")),
        "order_by_metric_ms": round(until(page, page.get_by_role("button", name="top1").click, "> 5")),
        "all_again_ms": round(until(page, lambda: search.fill(""), "=== 50")),
        "next_page_ms": round(until(page, page.get_by_role("button", name="Next page").click, "=== 50")),
    }
    page.get_by_text("Columns", exact=True).click()
    page.locator(".picker input").nth(40).wait_for()
    for place in range(40):
        page.locator(".picker input").nth(place).check()
    page.get_by_text("Columns", exact=True).click()
    found["columns"] = page.locator(".runs thead th").count()
    page.evaluate("setTimeout(() => { const end = performance.now() + 120; while (performance.now() < end); })")
    time.sleep(1.0)
    assert any(length > 100 for _, length in page.evaluate("longTasks")), "a long task is seen"
    page.evaluate("longTasks.length = 0")
    page.mouse.move(640, 500)
    for down in (400, -400):
        for _ in range(15):
            page.mouse.wheel(0, down)
            time.sleep(0.05)
    time.sleep(0.5)
    tasks = [length for _, length in page.evaluate("longTasks")]
    found["scrolling_longest_task_ms"] = round(max(tasks, default=0.0))
    found["scrolling_long_tasks"] = len(tasks)
    context.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--loads", type=int, default=9)
    parser.add_argument("--json", type=Path, default=RESULTS)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "home"
        home.mkdir()
        store = Store(f"sqlite:///{home}/tcnn.db")
        store.migrate()
        fill(store, given.jobs)
        store.close()
        before = os.getloadavg()[0]
        with serving(home, "--no-worker") as url, sync_playwright() as playwright:
            browser = chromium(playwright)
            first_view(browser, url, "#/")  # the server and the browser have begun
            views = {place: [first_view(browser, url, place) for _ in range(given.loads)] for place in ROWS}
            table = [runs(browser, url) for _ in range(3)]
            keep(
                given.json, browser, before, jobs=given.jobs, loads=given.loads,
                interactive_ms={place: spread([ms for ms, _ in one]) for place, one in views.items()},
                main_thread_seconds={place: spread([s for _, s in one], 3) for place, one in views.items()},
                runs={
                    name: spread([float(one[name]) for one in table]) if name.endswith("ms") else table[0][name]
                    for name in table[0]
                },
            )  # fmt: skip
            browser.close()


if __name__ == "__main__":
    main()
