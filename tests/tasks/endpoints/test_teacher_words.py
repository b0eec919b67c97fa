"""What a teacher's client says of time."""

import pytest

from apprentice.tasks.endpoints.teacher import in_words


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.4, "0 s"),
        (89.4, "89 s"),
        (90, "2 min"),
        (3540, "59 min"),
        (3600, "1 h 0 min"),
        (7 * 3600 + 12 * 60 + 29, "7 h 12 min"),
        (7 * 3600 + 12 * 60 + 31, "7 h 13 min"),
    ],
)
def test_a_length_of_time_is_told_in_its_unit(seconds: float, words: str):
    assert in_words(seconds) == words
