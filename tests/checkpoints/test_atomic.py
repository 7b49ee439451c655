"""A file is either whole or not there, whatever happens while it is written."""

import errno
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tcnn import files
from tcnn.errors import EnvironmentFailure, OutputError, StorageError, storage_errors
from tcnn.files import check_file, check_output, make_directory, replacing, write_atomically


class TestOneFile:
    def test_no_thread_finds_another_umask_meanwhile(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Setting it is the only portable way to ask for it; a file that another thread makes then is open to all."""
        monkeypatch.setattr(os, "umask", lambda mask: pytest.fail("set"))
        with replacing(tmp_path / "a.bin") as temporary:
            temporary.touch(mode=0o600)
        plain = tmp_path / "b.bin"
        plain.touch()
        assert (tmp_path / "a.bin").stat().st_mode == plain.stat().st_mode

    def test_its_name_is_on_the_disk_too(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The folder is synced after the file has got its name."""
        synced: list[Path] = []
        monkeypatch.setattr(files, "folder_to_disk", lambda folder: synced.append(folder) or (folder / "a.bin").stat())
        with replacing(tmp_path / "a.bin") as temporary:
            temporary.touch()
        assert synced == [tmp_path]

    def test_gets_its_name_only_at_the_end(self, tmp_path: Path) -> None:
        path = tmp_path / "a.bin"
        with replacing(path) as temporary:
            temporary.write_bytes(b"half")
            assert not path.exists()
            assert temporary.parent == tmp_path, "another file system could not be renamed from"
        assert [file.name for file in tmp_path.iterdir()] == ["a.bin"]
        assert path.read_bytes() == b"half"

    @pytest.mark.parametrize("error", [ValueError("no"), KeyboardInterrupt(), SystemExit(143)], ids=repr)
    @pytest.mark.parametrize("existing", [None, b"old"])
    def test_of_which_nothing_remains_after_an_error(
        self, tmp_path: Path, error: BaseException, existing: bytes | None
    ) -> None:
        path = tmp_path / "a.bin"
        if existing is not None:
            path.write_bytes(existing)
        with pytest.raises(type(error)) as caught, replacing(path, force=True) as temporary:
            temporary.write_bytes(b"half")
            raise error
        assert caught.value is error, "an error that is not the disk's passes through unchanged"
        assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == (
            {} if existing is None else {"a.bin": existing}
        )

    def test_replaces_an_old_one_by_force(self, tmp_path: Path) -> None:
        path = tmp_path / "a.bin"
        path.write_bytes(b"a longer old content")
        with replacing(path, force=True) as temporary:
            temporary.write_bytes(b"new")
        assert path.read_bytes() == b"new"

    def test_leaves_whoever_has_the_old_one_open_alone(self, tmp_path: Path) -> None:
        path = tmp_path / "a.bin"
        path.write_bytes(b"old")
        with path.open("rb") as reader:
            with replacing(path, force=True) as temporary:
                temporary.write_bytes(b"new")
            assert reader.read() == b"old"


class TestADirectory:
    def test_appears_at_the_end_as_a_whole(self, tmp_path: Path) -> None:
        path = tmp_path / "out"
        with replacing(path) as temporary:
            temporary.mkdir()
            (temporary / "one").write_text("1")
            assert not path.exists()
            (temporary / "two").write_text("2")
        assert sorted(file.name for file in path.iterdir()) == ["one", "two"]
        assert [file.name for file in tmp_path.iterdir()] == ["out"]

    def test_of_which_nothing_remains_after_an_error(self, tmp_path: Path) -> None:
        with pytest.raises(KeyboardInterrupt), replacing(tmp_path / "out") as temporary:
            temporary.mkdir()
            (temporary / "one").write_text("1")
            raise KeyboardInterrupt
        assert list(tmp_path.iterdir()) == []

    def test_keeps_what_others_put_there(self, tmp_path: Path) -> None:
        path = tmp_path / "out"
        path.mkdir()
        (path / "mine.txt").write_text("mine")
        (path / "one").write_text("old")
        with replacing(path, force=True) as temporary:
            temporary.mkdir()
            (temporary / "one").write_text("new")
        assert {file.name: file.read_text() for file in path.iterdir()} == {"mine.txt": "mine", "one": "new"}

    def test_that_exists_stays_as_it_was_after_an_error(self, tmp_path: Path) -> None:
        path = tmp_path / "out"
        path.mkdir()
        (path / "one").write_text("old")
        with pytest.raises(ValueError, match="no"), replacing(path, force=True) as temporary:
            temporary.mkdir()
            (temporary / "one").write_text("new")
            raise ValueError("no")
        assert {file.name: file.read_text() for file in path.iterdir()} == {"one": "old"}
        assert [file.name for file in tmp_path.iterdir()] == ["out"]


class TestAFullDisk:
    @pytest.mark.parametrize("existing", [None, b"old"])
    def test_leaves_nothing_half_written(
        self, tmp_path: Path, existing: bytes | None, file_size_limit: Callable[[int], AbstractContextManager[None]]
    ) -> None:
        path = tmp_path / "a.bin"
        if existing is not None:
            path.write_bytes(existing)
        with (
            pytest.raises(StorageError, match=r"a\.bin: no space left while writing"),
            file_size_limit(5000),
            replacing(path, force=True) as temporary,
            temporary.open("wb") as handle,
        ):
            for _ in range(10):
                handle.write(bytes(1000))
                handle.flush()
        assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == (
            {} if existing is None else {"a.bin": existing}
        )

    @pytest.mark.parametrize(
        ("error", "words"),
        [
            (OSError(errno.ENOSPC, "No space left on device"), "no space left"),
            (OSError(errno.EDQUOT, "Disk quota exceeded"), "no space left"),
            (OSError(errno.EIO, "Input/output error"), "input/output error"),
            (OSError(errno.EROFS, "Read-only file system"), "read-only file system"),
            (RuntimeError("I/O error: No space left on device (os error 28)"), "no space left"),
        ],
        ids=["full", "quota", "broken", "read-only", "from Rust"],
    )
    def test_is_named_in_one_line(self, error: Exception, words: str) -> None:
        with pytest.raises(StorageError) as caught, storage_errors(Path("a.bin")):
            raise error
        assert str(caught.value).startswith(f"a.bin: {words}")
        assert "\n" not in str(caught.value)
        assert caught.value.exit_code == 4
        assert caught.value.__cause__ is error

    @pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
    def test_a_process_that_is_short_of_something_is_no_full_disk(self, number: int) -> None:
        """Another place would not help."""
        said = r"a\.bin: .* while writing; nothing was kept, end other work or raise its limits"
        with pytest.raises(EnvironmentFailure, match=said) as caught, storage_errors(Path("a.bin")):
            raise OSError(number, os.strerror(number))
        assert not isinstance(caught.value, StorageError)


class TestCheckOutput:
    def test_accepts_a_free_name(self, tmp_path: Path) -> None:
        check_output(tmp_path / "a.bin")
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize("force", [True, False])
    def test_refuses_what_is_neither_file_nor_directory(self, force: bool, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "pipe")
        with pytest.raises(OutputError, match="pipe: is a device, pipe or socket, which a file would replace; name a"):
            check_output(tmp_path / "pipe", force)
        assert (tmp_path / "pipe").is_fifo()

    @pytest.mark.parametrize("force", [True, False])
    def test_a_file_replaces_no_directory(self, force: bool, tmp_path: Path) -> None:
        """And is not advised to with --force, nor after the work."""
        (tmp_path / "a").mkdir()
        with pytest.raises(OutputError, match="a: expected a file or nothing, found a directory; choose another name"):
            check_file(tmp_path / "a", force)
        with (
            pytest.raises(OutputError, match="found a directory"),
            replacing(tmp_path / "a", force=True) as temporary,
        ):
            temporary.write_text("page")
        assert [(path.name, path.is_dir()) for path in tmp_path.iterdir()] == [("a", True)]

    def test_refuses_a_missing_directory(self, tmp_path: Path) -> None:
        with pytest.raises(OutputError, match=r"the directory .*nowhere does not exist; create it first"):
            check_output(tmp_path / "nowhere" / "a.bin", force=True)

    def test_refuses_a_parent_that_is_a_file(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        with pytest.raises(OutputError, match="does not exist"):
            check_output(tmp_path / "file" / "a.bin")

    @pytest.mark.parametrize("kind", ["file", "directory", "dangling link"])
    def test_refuses_what_exists_unless_forced(self, tmp_path: Path, kind: str) -> None:
        path = tmp_path / "a"
        if kind == "file":
            path.write_text("")
        elif kind == "directory":
            path.mkdir()
        else:
            path.symlink_to(tmp_path / "gone")
        with pytest.raises(OutputError, match="exists already; replace it with --force"):
            check_output(path)
        check_output(path, force=True)

    @pytest.mark.parametrize(("mode", "name"), [(0o555, "a.bin"), (0o000, "a.bin"), (0o000, "sub/a.bin")])
    def test_refuses_a_directory_without_permission(self, mode: int, name: str) -> None:
        """In a process that gives up root's rights where it has them; pytest's own directories would not let it in."""
        script = (
            "import os, sys\n"
            "from pathlib import Path\n"
            "from tcnn.errors import OutputError\n"
            "from tcnn.files import check_output\n"
            "if os.getuid() == 0:\n"
            "    os.setgroups([])\n"
            "    os.setgid(65534)\n"
            "    os.setuid(65534)\n"
            "try:\n"
            "    check_output(Path(sys.argv[1]))\n"
            "except OutputError as error:\n"
            "    print(error)\n"
        )
        with tempfile.TemporaryDirectory() as outer:
            Path(outer).chmod(0o755)
            inner = Path(outer) / "inner"
            (inner / "sub").mkdir(parents=True)
            inner.chmod(mode)
            command = [sys.executable, "-c", script, str(inner / name)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            inner.chmod(0o755)
        assert done.stderr == ""
        assert "no permission" in done.stdout
        assert done.stdout.count("\n") == 1


def test_make_directory_makes_parents_and_refuses_a_file(tmp_path: Path) -> None:
    make_directory(tmp_path / "a" / "b")
    make_directory(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").is_dir()
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot be used as a directory"):
        make_directory(tmp_path / "file")


def test_large_files_reach_the_disk_slice_by_slice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever else waits for the disk waits for one slice. The real system call is made; only noted beside."""
    real, seen = files._sync_file_range, []
    if real is None:
        pytest.skip("NOT TESTED: no sync_file_range on this system")

    def noted(*given: int) -> int:
        seen.append(given[1:3])
        result: int = real(*given)
        assert result == 0
        return result

    monkeypatch.setattr(files, "_sync_file_range", noted)
    content = b"x" * (2 * files.SLICE + 5)
    with files.replacing(tmp_path / "large") as temporary:
        temporary.write_bytes(content)
    assert (tmp_path / "large").read_bytes() == content
    assert seen == [(start, files.SLICE) for start in (0, files.SLICE, 2 * files.SLICE)]
    monkeypatch.setattr(files, "_sync_file_range", None)
    with files.replacing(tmp_path / "large", force=True) as temporary:
        temporary.write_bytes(b"y")
    assert (tmp_path / "large").read_bytes() == b"y"


@pytest.mark.parametrize("content", ["τ = 1\n", b"\xff\r\n"])
def test_a_text_or_bytes_at_once(tmp_path: Path, content: str | bytes) -> None:
    write_atomically(tmp_path / "a", content)
    assert (tmp_path / "a").read_bytes() == (content.encode() if isinstance(content, str) else content)
    with pytest.raises(OutputError):
        write_atomically(tmp_path / "a", "other")
    write_atomically(tmp_path / "a", "other", force=True)
    assert (tmp_path / "a").read_text(encoding="utf-8") == "other"
    assert [file.name for file in tmp_path.iterdir()] == ["a"]
