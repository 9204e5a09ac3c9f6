"""Archives that must not be trusted: foreign names, every kind of damage, a disk that is full."""

import json
import random
import zipfile

import pytest

from semfocus.lab.archive import pack, unpack
from semfocus.training.files import StorageError


@pytest.mark.parametrize(
    "name",
    [
        "../evil.json",
        "/etc/evil",
        "convergence/runs/../../evil",
        "convergence/runs/0123456789abcdef/evil.py",
        "convergence/runs/short/summary.json",
        "convergence/runs/0123456789abcdef/snapshots/evil.py",
        "convergence/runs/0123456789abcdef/snapshots/summary.json",
        "convergence/runs/0123456789abcdef/snapshots/epoch-01.safetensors",
        "convergence/runs/0123456789abcdef/snapshots/epoch-1.safetensors/x",
        "convergence/runs/0123456789abcdef/snapshots/../evil.json",
        "convergence/runs/0123456789abcdef/epoch-1.safetensors",
        "convergence/snapshots/epoch-1.safetensors",
        "convergence/manifests/../x.json",
        "convergence/evil.py",
        "evil",
    ],
)
def test_other_names_are_refused_and_nothing_is_written(tmp_path, name):
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as bad:
        bad.writestr("convergence/runs/0123456789abcdef/summary.json", "{}")
        bad.writestr(name, "x")
    with pytest.raises(StorageError, match="nothing of it was written"):
        unpack(tmp_path / "x.zip", tmp_path / "there")
    assert not (tmp_path / "there").exists()


def test_damage_is_one_sentence(store, tmp_path):
    (tmp_path / "x.zip").write_bytes(b"not a zip")
    with pytest.raises(StorageError, match="damaged"):
        unpack(tmp_path / "x.zip", tmp_path / "there")
    pack(store[0].path, tmp_path / "y.zip")
    data = bytearray((tmp_path / "y.zip").read_bytes())
    data[200:220] = b"\0" * 20
    (tmp_path / "y.zip").write_bytes(data)
    with pytest.raises(StorageError, match=r"damaged|no file of a store"):
        unpack(tmp_path / "y.zip", tmp_path / "there")
    assert not (tmp_path / "there").exists()
    with pytest.raises(StorageError, match=r"must end in \.zip"):
        pack(store[0].path, tmp_path / "y.tar")


def test_every_kind_of_damage_is_one_sentence(store, tmp_path):
    pack(store[0].path, tmp_path / "x.zip")
    whole = (tmp_path / "x.zip").read_bytes()
    rng = random.Random(0)
    refused = 0
    for _ in range(60):
        data = bytearray(whole)
        for _ in range(3):
            data[rng.randrange(len(data))] = rng.randrange(256)
        (tmp_path / "y.zip").write_bytes(data)
        try:
            unpack(tmp_path / "y.zip", tmp_path / "there")
        except StorageError:
            refused += 1
    assert refused > 30


def test_an_encrypted_archive_is_refused(store, tmp_path):
    pack(store[0].path, tmp_path / "x.zip")
    data = bytearray((tmp_path / "x.zip").read_bytes())
    at = -1
    while (at := data.find(b"PK\x01\x02", at + 1)) >= 0:  # every entry of the central directory
        data[at + 8] |= 1
    (tmp_path / "x.zip").write_bytes(data)
    with pytest.raises(StorageError, match="encrypted"):
        unpack(tmp_path / "x.zip", tmp_path / "there")


def test_a_damaged_run_is_neither_packed_nor_in_the_way(store, tmp_path):
    found, _ = store
    pack(found.path, tmp_path / "good.zip")
    assert unpack(tmp_path / "good.zip", tmp_path / "there").runs > 0
    run = min((tmp_path / "there" / "convergence" / "runs").iterdir())
    (run / "summary.json").write_text("")
    with pytest.raises(StorageError, match=r"summary\.json is damaged"):
        pack(tmp_path / "there", tmp_path / "bad.zip")
    assert not (tmp_path / "bad.zip").exists()
    assert unpack(tmp_path / "good.zip", tmp_path / "there").runs == 1
    assert json.loads((run / "summary.json").read_text())["status"] == "finished"


def test_a_full_disk_leaves_nothing_of_a_pack(store, tmp_path, monkeypatch):
    class Full(zipfile.ZipFile):
        left = 2  # fails when it is finished, and when it is cleaned up

        def close(self):
            if self.left:
                self.left -= 1
                raise OSError(28, "No space left on device")
            super().close()

    monkeypatch.setattr("zipfile.ZipFile", Full)
    with pytest.raises(StorageError, match="No space left"):
        pack(store[0].path, tmp_path / "new" / "x.zip")
    assert list((tmp_path / "new").iterdir()) == []
