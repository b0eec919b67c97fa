"""A draft says what every version of an example goes on with, and nothing that differs."""

from apprentice.tasks.episodes.drafts import LONGEST, Drafts

FRAME = [[[1, 2, 3, 70, 71, 4, 5, 6], [1, 2, 3, 80, 4, 5, 6]]]
"""One example, whose value is 70 71 or 80."""


def test_a_frame_is_drafted_up_to_its_value_and_after_it():
    drafts = Drafts(FRAME)
    assert drafts.after([9, 9, 1], 10) == [2, 3]
    assert drafts.after([1, 2, 3], 10) == []
    assert drafts.after([99, 4], 10) == [5, 6]


def test_where_two_examples_differ_nothing_is_drafted_until_they_are_told_apart():
    drafts = Drafts([[[1, 2, 3, 4]], [[1, 2, 5, 6]]])
    assert drafts.after([1], 10) == [2]
    assert drafts.after([1, 2], 10) == []
    assert drafts.after([1, 2, 5], 10) == [6]


def test_a_longer_context_says_which_of_two_places_it_is():
    drafts = Drafts([[[1, 7, 2, 7, 3]]])
    assert drafts.after([7], 1) == []
    assert drafts.after([2, 7], 1) == [3]


def test_a_draft_has_at_most_as_many_tokens_as_are_wanted():
    drafts = Drafts([[[1, 2, 1, 2]]])
    assert len(drafts.after([1], 5)) == 5
    assert len(drafts.after([1], 10**6)) == LONGEST
