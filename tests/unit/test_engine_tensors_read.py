"""Safetensors documents read and written without torch, and the checksums of what is in them."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load, load_file, save, save_file

from gyre.cell_agent.engine.errors import BadWeightsError
from gyre.cell_agent.engine.sglang.checksum import cpu_checksum
from gyre.cell_agent.engine.tensors import (
    ModelShapes,
    TensorView,
    in_buckets,
    named_checksum,
    read_directory,
    read_document,
    write_document,
)
from gyre.testkit.tiny_model import make_tiny_model

WEIGHTS = {
    "a": torch.arange(6, dtype=torch.float32).reshape(2, 3),
    "b": torch.tensor([0.1, -2.5], dtype=torch.float64),
    "c": torch.tensor([1.5, 3.25], dtype=torch.bfloat16),
    "d": torch.tensor([0.1], dtype=torch.float16),
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("m") / "m")


def test_a_document_is_read_as_safetensors_reads_it_and_written_back() -> None:
    views = read_document(save(WEIGHTS))
    assert {name: view.shape for name, view in views.items()} == {
        name: tuple(tensor.shape) for name, tensor in WEIGHTS.items()
    }
    again = load(write_document(views.values()))
    assert all(torch.equal(again[name], tensor) for name, tensor in WEIGHTS.items())


def test_the_checksum_is_over_names_and_fp32_whatever_the_precision() -> None:
    digest = hashlib.sha256()
    for name, tensor in sorted(WEIGHTS.items()):
        digest.update(name.encode() + tensor.to(torch.float32).numpy().tobytes())
    assert named_checksum(read_document(save(WEIGHTS))) == digest.hexdigest()


@pytest.mark.parametrize(
    "document",
    [b"", b"12345678", (99).to_bytes(8, "little") + b"{}", (2).to_bytes(8, "little") + b"[]"],
)
def test_what_is_no_document_is_refused(document: bytes) -> None:
    with pytest.raises(BadWeightsError):
        read_document(document)


def test_a_document_cut_short_is_refused() -> None:
    with pytest.raises(BadWeightsError, match="bytes"):
        read_document(save(WEIGHTS)[:-1])


def test_shards_are_read_as_one(model: Path, tmp_path: Path) -> None:
    whole = load_file(model / "model.safetensors")
    names = sorted(whole)
    parts = {"one.safetensors": names[:3], "two.safetensors": names[3:]}
    for file, part in parts.items():
        save_file({name: whole[name] for name in part}, tmp_path / file)
    index = {name: file for file, part in parts.items() for name in part}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    assert named_checksum(read_directory(tmp_path)) == named_checksum(read_directory(model))


def test_buckets_hold_every_tensor_once_and_no_more_than_fits(model: Path) -> None:
    views = list(read_directory(model).values())
    buckets = list(in_buckets(views, 40_000))
    assert [view.name for bucket in buckets for view in bucket] == [view.name for view in views]
    sizes = [sum(len(view.data) for view in bucket) for bucket in buckets]
    assert all(
        size <= 40_000 or len(bucket) == 1 for size, bucket in zip(sizes, buckets, strict=True)
    )
    assert len(buckets) > 2


def test_a_tied_output_layer_may_be_sent_or_left_out(model: Path) -> None:
    shapes, views = ModelShapes.of(model), read_directory(model)
    assert shapes.tied
    shapes.check(views.values())
    head = TensorView(
        name="lm_head.weight",
        dtype="F32",
        shape=views["model.embed_tokens.weight"].shape,
        data=views["model.embed_tokens.weight"].data,
    )
    shapes.check([*views.values(), head])


def test_a_layer_that_lacks_a_projection_has_no_checksum_of_sglangs(model: Path) -> None:
    views = read_directory(model)
    del views["model.layers.1.self_attn.k_proj.weight"]
    with pytest.raises(BadWeightsError, match=r"model\.layers\.1"):
        cpu_checksum(views, tied=True)
