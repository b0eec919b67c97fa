"""Of a mixture, SFT measures each environment apart, on rows that it does not train on."""

from apprentice.tasks.sft import train_eval_split


def episodes(**numbers: int) -> list[dict]:
    named = [(f"{label}: echo 1", n) for label, n in numbers.items()]
    rows = [name for name, n in named for _ in range(n)]
    return [episode(seed, name) for seed, name in enumerate(rows)]


def episode(seed: int, environment: str, question: str = "") -> dict:
    return {"seed": seed, "environment": environment, "messages": [{}, {"content": question or f"question {seed}"}]}


def test_of_an_environment_alone_everything_is_trained_on():
    exclusive = [episode(seed, "echo 1") for seed in range(40)]
    assert train_eval_split(exclusive) == (exclusive, {})


def test_a_twentieth_of_each_environment_is_held_apart_and_never_trained_on():
    all_of_them = episodes(a=100, b=45)
    trained, apart = train_eval_split(all_of_them)
    assert {label: len(own) for label, own in apart.items()} == {"a": 5, "b": 2}
    assert [each["seed"] for own in apart.values() for each in own] == [95, 96, 97, 98, 99, 143, 144]
    assert len(trained) == 138
    assert not {each["seed"] for each in trained} & {95, 96, 97, 98, 99, 143, 144}


def test_an_environment_with_a_single_row_is_trained_on():
    trained, apart = train_eval_split(episodes(a=30, b=1))
    assert list(apart) == ["a"]
    assert trained[-1]["environment"] == "b: echo 1"


def test_what_is_held_apart_is_trained_on_under_no_other_seed():
    again = episode(500, "a: echo 1", "QUESTION  99")
    trained, apart = train_eval_split([again, *episodes(a=100)])
    assert [each["seed"] for each in apart["a"]] == [95, 96, 97, 98, 99]
    assert again not in trained
