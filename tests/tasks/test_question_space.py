"""How many questions a space has, seen in a sample of them."""

from apprentice.tasks.question_space import lasts


def test_how_long_a_space_lasts_is_told_from_the_repeats():
    drawn = [str(number * number % 997 % 500) for number in range(300)]
    assert lasts(drawn, a_round=300) <= 2
    assert lasts(drawn, a_round=30) > 5 * lasts(drawn, a_round=300)
    assert lasts([str(number) for number in range(300)], a_round=300) > 50
