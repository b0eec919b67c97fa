"""A journal that two processes wrote is read: the first of each episode counts, and a torn line is played again."""

import json
from pathlib import Path

import pytest

from apprentice.tasks.episodes.journal import Journal

A, B, C, B2 = (
    json.dumps({"seed": seed, "said": said}).encode() + b"\n" for seed, said in [*enumerate("abc"), (1, "d")]
)
TORN = B[:9] + b"\n"
TWICE, UNREADABLE = "episodes.jsonl: {}. Two processes", "episodes.jsonl: {}. Their episodes"
WRITTEN: dict[str, tuple[list[bytes], list[bytes], list[str]]] = {
    "by one": ([A, B, C], [A, B, C], []),
    "out of order": ([C, A, B], [A, B, C], []),
    "by nobody yet": ([], [], []),
    "twice the same line": ([A, B, B, C], [A, B, C], [TWICE.format(1)]),
    "two answers to one question": ([A, B, B2, C], [A, B, C], [TWICE.format(1)]),
    "the other answer first": ([A, B2, B, C], [A, B2, C], [TWICE.format(1)]),
    "everything three times": ([A, B, C] * 3, [A, B, C], [TWICE.format(6)]),
    "its last line torn": ([A, B[:9]], [A], []),
    "twice, and its last line torn": ([A, A, B[:9]], [A], [TWICE.format(1)]),
    "a line torn in the middle": ([A, TORN, C], [A, C], [UNREADABLE.format(1)]),
    "two lines in one": ([A, B[:-1] + C], [A], [UNREADABLE.format(1)]),
    "zeros, as an interrupted machine leaves them": ([A, bytes(12) + b"\n", B], [A, B], [UNREADABLE.format(1)]),
    "another program": ([b"[]\n", b"{}\n", b'{"seed": "1"}\n', A], [A], [UNREADABLE.format(3)]),
    "torn and twice": ([TORN, A, A], [A], [TWICE.format(1), UNREADABLE.format(1)]),
}
"""What stands in the file, what is read of it, and what is said."""


@pytest.mark.parametrize("how", WRITTEN)
def test_a_journal_is_read_however_it_was_written(how: str, tmp_path: Path):
    said: list[str] = []
    lines, read, warned = WRITTEN[how]
    path = tmp_path / "episodes.jsonl"
    path.write_bytes(b"".join(lines))
    kept = Journal(path, "seed", said.append)
    assert list(kept.in_order()) == read
    assert (len(kept), kept.done()) == (len(read), {json.loads(line)["seed"] for line in read})
    assert len(said) == len(warned)
    assert all(part in text for text, part in zip(said, warned, strict=True))
    kept.forget({0})
    assert kept.done() == {json.loads(line)["seed"] for line in read} - {0}
