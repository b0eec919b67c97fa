"""The table says how a log's questions differ from the windows'."""

from apprentice.tasks.serving.production import production_rows, questions_in


def test_lengths_and_the_share_outside_are_those_of_the_texts():
    rows = production_rows(["One  two", "one two", "x" * 50], ["one two", "three four five"])
    cells = {row[""]: (row["the log"], row["the recipe's windows"]) for row in rows}
    assert cells["questions"] == ("3", "2")
    assert cells["different ones"] == ("2", "2"), "letter case and white space aside"
    assert cells["characters, median"] == ("8", "11")
    assert cells["words, median"] == ("2", "2")
    assert cells["not in the windows"] == ("33%", "–")


def test_the_question_of_a_row_is_the_first_text_of_the_user():
    said = [{"role": "system", "content": "s"}, {"role": "user", "content": "a"}, {"role": "user", "content": "b"}]
    assert questions_in([{"messages": said}, {"messages": [{"role": "user", "content": [1]}]}, "x", {}]) == ["a"]
