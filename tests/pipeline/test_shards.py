from __future__ import annotations

import concurrent.futures
import multiprocessing
import subprocess
import sys

import grain
import pytest

from anytpu.pipeline import Dataset, FixedLenFeature, encode_example, parse_example, parse_examples, records
from anytpu.pipeline import write_records as write
from anytpu.pipeline.record import Origin, Record

COUNT = 300


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    path = tmp_path_factory.mktemp("sources") / "x.tfrecord"
    write(path, (encode_example({"x": i}) for i in range(COUNT)), shards=3)
    return records(path.parent / "*")


def number_of(record: bytes) -> int:
    return int(parse_example(record, {"x": FixedLenFeature((), "int64")})["x"])


def test_what_it_prints(source):
    first, last = source.shards[0].path, source.shards[-1].path
    assert repr(source) == f"RecordSource(3 files, {first!r} to {last!r})"
    assert str(Origin("a", 3, None)) == "a, record 3"


def test_a_record_is_bytes():
    record = Record.at(b"abc", Origin("a", 0, 0))
    assert record == b"abc"
    assert hash(record) == hash(b"abc")
    assert type(record[1:]) is bytes


def test_from_many_threads(source):
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda i: number_of(source[i % COUNT]), range(4 * COUNT)))
    assert found == [number_of(record) for record in source] * 4


def test_in_another_process(source):
    assert number_of(source[5]) == 15
    with concurrent.futures.ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        assert pool.submit(source.__getitem__, 5).result() == source[5]


def test_under_grain(source):
    shuffled = grain.MapDataset.source(source).shuffle(seed=1).map(number_of)
    found = list(shuffled)
    assert sorted(found) == list(range(COUNT))
    assert found != sorted(found)


def test_batches_of_records_in_a_dataset(source):
    spec = {"x": FixedLenFeature((), "int32")}
    dataset = Dataset.from_source(source).batch(64).map(lambda batch: parse_examples(batch, spec)["x"])
    batches = list(dataset)
    assert [len(batch) for batch in batches] == [64, 64, 64, 64, 44]
    assert sorted(x for batch in batches for x in batch.tolist()) == list(range(COUNT))


def test_array_records_of_grain_in_a_dataset(tmp_path):
    from array_record.python.array_record_module import ArrayRecordWriter

    writer = ArrayRecordWriter(f"{tmp_path}/x.array_record", "group_size:1")
    for number in range(5):
        writer.write(b"%d" % number)
    writer.close()
    dataset = Dataset.from_source(grain.sources.ArrayRecordDataSource(f"{tmp_path}/x.array_record")).batch(3)
    assert [batch.tolist() for batch in dataset] == [[b"0", b"1", b"2"], [b"3", b"4"]]


def test_the_import_is_light():
    program = (
        "import sys; from anytpu.pipeline import records, FixedLenFeature, lines, parse_example\n"
        "heavy = {'grain', 'jax', 'PIL', 'keras', 'fsspec', 'simplejpeg'}\n"
        "print(sorted(heavy & set(sys.modules)), 'google.protobuf' in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout == "[] False\n"
