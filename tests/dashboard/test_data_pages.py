"""Data sets, checkpoints and weights as pages, and the system's: one server, no worker."""

import base64
import io
import re
import zipfile
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from browsing import HOSTILE, LOOKS, Open, client_of, inaccessible, sync_api
from PIL import Image
from serving import Server
from story import Story, pictures

import tcnn
from tcnn.data.sources.names import COMPANIONS, EXTENSIONS, is_image, is_left_out
from tcnn_jobs.model.jobs import Upload
from tcnn_jobs.model.naming import Labels

expect = sync_api.expect


def looked_at(page: Any) -> None:
    """In every size and colour."""
    for width, scheme in LOOKS:
        page.set_viewport_size({"width": width, "height": 860})
        page.emulate_media(color_scheme=scheme)
        assert inaccessible(page) == [], (width, scheme)
    page.set_viewport_size({"width": 1280, "height": 860})


def test_a_data_set_is_uploaded_looked_at_and_deleted(
    server: Server, story: Story, open_page: Open, tmp_path: Path
) -> None:
    (tmp_path / f"{HOSTILE.replace('/', '')}.zip").write_bytes(pictures())
    (tmp_path / "no.zip").write_bytes(b"nothing")
    folder = tmp_path / "pets"
    with zipfile.ZipFile(io.BytesIO(pictures(broken=False))) as packed:
        packed.extractall(folder)
    page = open_page(f"{server.url}/#/data")
    expect(page.get_by_text("None uploaded yet.")).to_be_visible()
    page.get_by_label("Files").set_input_files(sorted(tmp_path.glob("*.zip")))
    expect(page.locator(".sending .sent")).to_contain_text("25 images of 2 classes")
    expect(page.locator(".sending .refused")).to_contain_text("expected a zip, tar")
    page.get_by_label("A folder of class folders").set_input_files(folder)
    expect(page.locator(".sending .sent").last).to_contain_text("23 images of 2 classes")
    expect(page.locator(".listing tbody tr")).to_have_count(2)

    page.locator(".listing").get_by_role("link", name=re.compile("onerror")).click()
    expect(page.get_by_text("2 of the 25 images cannot be read")).to_be_visible()
    page.get_by_text("Show them", exact=True).click()
    expect(page.locator(".unreadable li")).to_have_text(
        [re.compile("100.jpg.*truncated"), re.compile("train/cat/101.pngnot an image in one of the formats JPEG, ")]
    )
    expect(page.get_by_text("The largest class has 17 images, the smallest 8: 2.1 times as many.")).to_be_visible()
    expect(page.locator(".thumbnails img")).to_have_count(22)  # of the first 24, two of which are none
    assert page.locator(".thumbnails img").first.evaluate("image => image.naturalHeight") == 40
    page.get_by_role("button", name="More images").click()
    expect(page.get_by_text("25 of 25 images")).to_be_visible()
    looked_at(page)
    page.get_by_label("Class", exact=True).select_option("cat")
    page.get_by_label("Split").select_option("val")
    expect(page.get_by_text("3 of 3 images")).to_be_visible()

    identifier = page.url.rpartition("/")[2]
    job = story.house.submit(request={"model": "resnet18", "finetune": {"dataset": identifier}})
    page.reload()
    expect(page.get_by_text("One queued or running job uses it")).to_be_visible()
    page.get_by_role("button", name="Delete").click()
    page.get_by_role("button", name="Delete it").click()
    expect(page.get_by_role("alert").first).to_contain_text(f"{job.id} is queued and needs it")
    story.house.store.cancel(job.id)
    page.get_by_role("link", name="Fine-tune on it").click()
    expect(page.get_by_label("Data set", exact=True)).to_have_value(identifier)
    page.go_back()
    page.get_by_role("button", name="Delete").click()
    page.get_by_role("button", name="Delete it").click()
    expect(page.locator(".listing tbody tr")).to_have_count(1)
    assert not list(story.house.home.datasets.glob(f"{identifier}*"))


def test_a_folder_is_packed_as_it_lies(server: Server, open_page: Open, tmp_path: Path) -> None:
    """Long names, other letters, empty files and the folder's own name: what arrives is what was sent."""
    folder = tmp_path / "größen"
    names = ["a/1.png", "ß/" + "x" * 120 + ".png", "ß/ü 1.png"]
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8)).save(folder / name)
    (folder / "a" / "notes.txt").write_text("left out")
    page = open_page(f"{server.url}/#/data")
    page.get_by_label("A folder of class folders").set_input_files(folder)
    expect(page.locator(".sending .sent")).to_contain_text("3 images of 2 classes (a, ß)")
    with client_of(server) as client:
        made = client.get("/datasets").json()["data"][0]
        found = client.get(f"/datasets/{made['id']}/images").json()["data"]
    assert made["name"] == "größen.tar"
    assert [one["file"].removeprefix("größen/") for one in found] == names


def test_a_class_without_an_image_does_not_vanish_from_a_folder(
    server: Server, open_page: Open, tmp_path: Path
) -> None:
    """Be it chosen or dropped: the server says so, as it does of an archive."""
    for name in ("a/1.png", "b/1.png"):
        (tmp_path / "pets" / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8)).save(tmp_path / "pets" / name)
    (tmp_path / "pets" / "c").mkdir()
    (tmp_path / "pets" / "c" / "1.heic").write_bytes(b"in a format that nobody reads")
    page = open_page(f"{server.url}/#/data")
    page.get_by_label("A folder of class folders").set_input_files(tmp_path / "pets")
    expect(page.locator(".sending .refused")).to_contain_text("no images in class folder c;")
    found = page.evaluate(
        """async () => {
            const file = (name) => ({ name, isFile: true, file: (done) => done(new File(["x"], name)) });
            const folder = (name, inside) => ({ name, isFile: false, createReader: () => {
                const batches = [inside, []];
                return { readEntries: (done) => done(batches.shift()) };
            } });
            const { filesOf } = await import("./static/dashboard/uploads/packing.js");
            const all = await filesOf(folder("pets", [folder("a", [file("1.png")]), folder("c", [file("1.heic")])]));
            return all.map((one) => one.path + (one.file ? "" : "/"));
        }"""
    )
    assert sorted(found) == ["pets/", "pets/a/", "pets/a/1.png", "pets/c/", "pets/c/1.heic"]


def test_of_a_folder_the_page_sends_what_the_server_keeps_or_counts(
    server: Server, open_page: Open, tmp_path: Path
) -> None:
    """By the same lists; of what is only counted the name alone goes, and what nobody misses stays."""
    names = [
        f"a/{n}{suffix}" for n, suffix in enumerate((*EXTENSIONS, *COMPANIONS, ".heic", ".JPE", ".Txt", ".", "", ".7"))
    ]
    names += [
        "a/.hidden.png",
        ".git/x",
        "b.c/d",
        "__MACOSX/1.png",
        "a/Thumbs.db",
        "thumbs.db.png",
        "ä.ü/é.JFIF",
        "a/b.tar.gz",
    ]
    page = open_page(f"{server.url}/#/data")
    kinds = "names => import('./static/dashboard/uploads/packing.js').then(({ kindOf }) => names.map(kindOf))"
    expected = ["image" if is_image(name) else "missed" if is_left_out(name) else None for name in names]
    assert page.evaluate(kinds, names) == expected
    assert page.evaluate(kinds, ["a/Icon\r", "a/b\\c"]) == [None, None]  # names that the server would refuse
    for name in ("a/1.png", "a/2.jfif", "b/1.pbm", "b/2.jp2"):
        (tmp_path / "pets" / name).parent.mkdir(parents=True, exist_ok=True)
        image = Image.new("RGB", (8, 8))
        image.save(tmp_path / "pets" / name, {"j": "JPEG", "p": "PNG"}[name[4]])
    for name in ("a/3.heic", "b/4.HEIC", "a/1.txt", "b/.hidden", "note.heic"):
        (tmp_path / "pets" / name).write_bytes(b"0" * 100_000)
    page.get_by_label("A folder of class folders").set_input_files(tmp_path / "pets")
    said = "4 images of 2 classes (a, b). Left out: 2 files without the extension of an image."
    expect(page.locator(".sending .sent")).to_contain_text(said)
    with client_of(server) as client:
        made = client.get("/datasets").json()["data"][0]
    assert (made["images"], made["left_out"]) == (4, 2) and made["size"] < 50_000


def test_jobs_that_mention_a_data_set_do_not_use_it(server: Server, story: Story, open_page: Open) -> None:
    """Nor do they hide one that does, and waits, behind many that are newer."""
    store, data = story.house.store, f"ds_{'9' * 24}"
    details = {"classes": ["a", "b"], "images": 6, "splits": {}}
    store.add_upload(Upload(id=data, owner="local", kind="dataset", name="pets.zip", path=data, size=1, sha256="0" * 64,
                            details=details))  # fmt: skip
    waiting = story.house.submit()
    store.label(waiting.id, "local", Labels(note=f"next time on {data}"))
    page = open_page(f"{server.url}/#/data/{data}")
    expect(page.get_by_text("No jobs use it.")).to_be_visible()
    used = {"model": "resnet18", "finetune": {"dataset": data}}
    older = story.house.submit(request=used)
    for _ in range(51):
        store.cancel(story.house.submit(request=used).id)
    page.reload()
    expect(page.get_by_text("One queued or running job uses it")).to_be_visible()
    users = page.locator(".users a")
    expect(users).to_have_count(51)
    expect(users.last).to_have_attribute("href", f"#/jobs/{older.id}")
    expect(page.get_by_role("link", name="All jobs that mention it")).to_be_visible()
    for job in (waiting, older):
        store.cancel(job.id)


DROPPED = """([names, content]) => {
  const transfer = new DataTransfer();
  const bytes = Uint8Array.from(atob(content), (letter) => letter.charCodeAt(0));
  for (const name of names) transfer.items.add(new File([bytes], name));
  return transfer;
}"""


@pytest.mark.slow
def test_several_files_are_dropped(server: Server, open_page: Open) -> None:
    page = open_page(f"{server.url}/#/data")
    content = base64.b64encode(pictures(broken=False)).decode()
    files = page.evaluate_handle(DROPPED, [["one.zip", "two.zip"], content])
    zone = page.locator(".uploads")
    zone.dispatch_event("dragover", {"dataTransfer": files})
    expect(zone).to_have_class(re.compile("over"))
    zone.dispatch_event("drop", {"dataTransfer": files})
    expect(zone).not_to_have_class(re.compile("over"))
    expect(page.locator(".sending .sent b")).to_have_text(["one.zip", "two.zip"])
    looked_at(page)
    page.get_by_role("button", name="Dismiss one.zip").click()
    expect(page.locator(".sending li")).to_have_count(1)
    expect(page.locator(".listing").get_by_role("link", name="two.zip")).to_be_visible()


@pytest.mark.slow  # three processes that load torch
def test_checkpoints_and_weights(server: Server, open_page: Open, tmp_path: Path) -> None:
    torch.manual_seed(0)
    cnn = timm.create_model("test_resnet", num_classes=3)
    model, _ = tcnn.convert(cnn)
    model.pretrained_cfg["label_names"] = [HOSTILE, "cow", "dog"]
    tcnn.save(model, tmp_path / "t_test.safetensors")
    torch.save({"arch": "test_resnet", "state_dict": cnn.state_dict()}, tmp_path / "mine.pth.tar")
    page = open_page(f"{server.url}/#/checkpoints")
    page.get_by_label("Files").set_input_files(sorted(tmp_path.iterdir()))
    expect(page.locator(".sending .sent")).to_have_count(2)
    looked_at(page)
    page.locator(".listing").get_by_role("link", name="t_test.safetensors").click()
    expect(page.get_by_text(f"{HOSTILE}, cow, dog")).to_be_visible()
    expect(page.get_by_text("✓ The same function")).to_have_count(0)  # it was saved from Python, unverified
    looked_at(page)
    page.get_by_role("link", name="Fine-tune it").click()
    expect(page.get_by_label("Checkpoint", exact=True)).to_have_value(re.compile("^ckpt_"))

    page.goto(f"{server.url}/#/checkpoints")
    page.locator(".listing").get_by_role("link", name="mine.pth.tar").click()
    expect(page.get_by_text("test_resnet").first).to_be_visible()
    expect(page.get_by_role("row", name="fc.weight")).to_contain_text("3×96")
    looked_at(page)
    identifier = page.url.rpartition("/")[2]
    page.get_by_role("link", name="Convert it").click()
    expect(page.get_by_role("combobox", name="Model")).to_have_value("test_resnet")
    expect(page.get_by_label("Pretrained weights")).to_be_disabled()
    looked_at(page)
    page.get_by_role("button", name="Convert", exact=True).click()
    expect(page.get_by_role("heading", level=1, name="test_resnet")).to_be_visible()
    with client_of(server) as client:
        job = client.get(f"/jobs/{page.url.rpartition('/')[2]}").json()
    assert (job["request"]["model"], job["request"]["weights"]) == ("test_resnet", identifier)
    assert "pretrained" not in job["request"]
    page.get_by_role("link", name="Clone and edit").click()
    expect(page.get_by_label("Your own weights")).to_have_value(identifier)


def test_what_the_cnn_of_a_checkpoint_learned_from_is_told(server: Server, story: Story, open_page: Open) -> None:
    """Of a CNN that was fine-tuned and then converted; the T-CNN itself has not been trained."""
    learned = {"data": "pets", "metrics": {"epoch": 1, "val": {"top1": 0.5, "images": 8}}}
    identifier = "ckpt_" + "4" * 24
    file = story.house.home.checkpoint(identifier)
    file.parent.mkdir(parents=True, exist_ok=True)
    model, _ = tcnn.convert(timm.create_model("test_resnet", num_classes=3))
    tcnn.save(model, file, None, {"source": {"name": "run", "training": learned}})
    told = {"base_model": "test_resnet", "tcnn_version": "0.2", "layers": 2, "parameters": 629_563, "trained": False}
    story.house.store.add_upload(
        Upload(id=identifier, owner="local", kind="checkpoint", name="t.safetensors", path=f"checkpoints/{identifier}",
               size=file.stat().st_size, sha256="0" * 64, details=told)
    )  # fmt: skip
    page = open_page(f"{server.url}/#/checkpoints/{identifier}")
    card = page.locator(".card", has=page.get_by_role("heading", name="How its CNN was fine-tuned"))
    expect(card.locator("dd")).to_have_text(["pets", "2", "50%", "8 images"])
    expect(page.get_by_role("heading", name="How it was fine-tuned")).to_have_count(0)


def test_the_system(server: Server, story: Story, open_page: Open) -> None:
    page = open_page(f"{server.url}/#/system")
    expect(page.get_by_text("All tenants")).to_be_visible()
    expect(page.get_by_role("region", name="The queue by tenant").get_by_role("row", name="local")).to_be_visible()
    expect(page.get_by_role("region", name="Workers")).to_contain_text(story.running.worker)
    expect(page.get_by_text("1 failed")).to_be_visible()
    looked_at(page)
