"""Stages are predicted from passes of a few layers of the student's shape, and grow with what they compute."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from apprentice.tasks import grpo_training, sft_training
from apprentice.tasks.models.tokenizer import tokenizer_of
from apprentice.tasks.settings.generation_engine import GenerationSpec
from apprentice.tasks.settings.grpo_settings import GrpoSpec
from apprentice.tasks.settings.sft_settings import SftSpec
from apprentice.tasks.settings.spec import EvaluateSpec, ThinkingSpec
from apprentice.tasks.settings.training import LoraSpec
from apprentice.tasks.training import forecast
from apprentice.tasks.training.forecast import Forecast, Student, of_answers
from apprentice.tasks.training.task_texts import Texts
from tests.tasks.test_one_prompt import tiny_model
from tests.tokenizers import build_tokenizer

ROW = {"input_ids": [0] * 9, "labels": [-100, -100, -100, -100, 7, 8, 9, -100, 6]}
TEXTS = Texts(prompts=[[1, 2, 3, 4], [1, 2, 5, 6]], rows=[ROW, ROW])
LEARNS, JUDGES, ASKS, ANSWERS, SAVED = 1.0, 0.25, 2.0, 4.0, 500.0


class Known(Student):
    """Passes whose cost is known."""

    def seconds(self, called: str, run: Any, *, generates: bool = False) -> float:
        kinds = {"held out": JUDGES, "asks": ASKS, "answers": ANSWERS}
        return next((took for name, took in kinds.items() if name in called), LEARNS)

    def saved(self, called: str, run: Any) -> float:
        return SAVED


@pytest.fixture
def student(monkeypatch: pytest.MonkeyPatch) -> Student:
    monkeypatch.setattr(forecast, "_second_a_byte", lambda: 1.0 / forecast.SAVED / 10)
    monkeypatch.setattr(forecast, "kept", lambda name, key, find, keeps: find())
    return Known(config=None, weights=1, tokenizer=None, texts=TEXTS)


SAVE = 0.1
"""Seconds of a checkpoint."""


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        pytest.param({}, 10 * LEARNS + SAVE, id="a batch after the other"),
        pytest.param({"epochs": 3}, 3 * (10 * LEARNS + SAVE), id="epochs"),
        pytest.param({"max_rows": 25}, 3 * LEARNS + 0.3 * SAVE, id="not more rows than allowed"),
        pytest.param(
            {"max_rows": 50, "held_out": 0.2}, 4 * LEARNS + JUDGES + SAVE, id="held out are a share of the allowed rows"
        ),
        pytest.param({"held_out": 0.2, "epochs": 2}, 2 * (8 * LEARNS + 2 * JUDGES + SAVE), id="each epoch is judged"),
        pytest.param({"lora": {}}, 10 * LEARNS, id="adapters are saved in no time"),
    ],
)
def test_sft_takes_its_batches_and_its_checkpoints(student: Student, given: dict[str, Any], seconds: float):
    settings: dict[str, Any] = {"epochs": 1, "batch_size": 10, "gradient_accumulation": 1, "checkpoint_steps": 10}
    assert sft_training.forecast(SftSpec(**(settings | given)), 100, student).seconds == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        pytest.param({}, 7 * (ASKS + LEARNS) + SAVE, id="asks and learns"),
        pytest.param({"oversample": 1.5}, 7 * (1.5 * ASKS + LEARNS) + SAVE, id="may ask for half as many more"),
        pytest.param({"oversample": 3.0}, 7 * (2.5 * ASKS + LEARNS) + SAVE, id="asks again for most of its groups"),
        pytest.param({"gradient_accumulation": 2}, 14 * (ASKS + LEARNS) + SAVE, id="every batch of a step"),
    ],
)
def test_grpo_takes_what_it_asks_and_what_it_learns(student: Student, given: dict[str, Any], seconds: float):
    settings: dict[str, Any] = {"max_steps": 7, "batch_size": 16, "gradient_accumulation": 1, "checkpoint_steps": 7}
    assert grpo_training.forecast(GrpoSpec(**(settings | given)), 100, student).seconds == pytest.approx(seconds)


def test_an_evaluation_takes_its_batches_of_all_samples(student: Student):
    spec = EvaluateSpec(batch_size=8, samples=2, decoding="sampled")
    assert of_answers(spec, 10, student, 5, ends=True) == Forecast(3 * ANSWERS)


def test_an_untrained_student_is_predicted_to_write_as_many_tokens_as_it_may(student: Student):
    class Counting(Known):
        def seconds(self, called: str, run: Any, *, generates: bool = False) -> float:
            return 3.0 if run.keywords["ends"] else float(run.keywords["tokens"])

    for most, expected in ((40, [3.0, 40.0]), (2, [3.0, 2.0])):
        evaluation = EvaluateSpec(batch_size=10, questions=10, max_new_tokens=most)
        found = forecast.of_stages(Counting(*student), {}, evaluation)
        assert [each.seconds for each in found.values()] == expected


@pytest.mark.parametrize(
    ("given", "thought", "answers"),
    [
        ({}, 8, 0),
        ({"thinking": True}, 0, 0),  # the student answers at once
        ({"thinking": True}, 8, 3 * 100 + 50),
        ({"vote": 4}, 0, 400),
        ({"thinking": True, "vote": 4}, 8, 3 * 100 + 50 + 400),
    ],
)
def test_what_thoughts_are_worth_is_predicted_as_well(
    student: Student, given: dict[str, Any], thought: int, answers: int
):
    texts = student.texts._replace(thought=thought)
    found = forecast.of_stages(student._replace(texts=texts), {}, EvaluateSpec(batch_size=10, questions=100, **given))
    more = [each.seconds for label, each in found.items() if label == f"{answers:,} more of the trained one"]
    assert more == [pytest.approx(math.ceil(answers / 10) * ANSWERS)] * (answers > 0)


def test_a_training_holds_its_weights_four_times_and_what_a_pass_keeps(student: Student):
    larger, lora = student._replace(weights=10**9), SftSpec(lora=LoraSpec())
    whole, adapters = (sft_training.forecast(spec, 100, larger).bytes for spec in (SftSpec(), lora))
    assert whole == forecast.PROCESS + 16e9 + SAVED
    assert adapters == forecast.PROCESS + 4e9 + SAVED


@pytest.fixture
def tiny(chain_sum: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Student:
    """A student of eight layers, in a home without measurements, on a machine without other work."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(forecast, "is_busy", lambda: False)
    monkeypatch.setattr(forecast, "_second_a_byte", lambda: 0.0)
    questions = ["1 + 1 =", "20 + 2 ="]
    tokenizer = build_tokenizer(chain_sum, questions)
    config = tiny_model(tokenizer).config
    config.num_hidden_layers, config.layer_types = 8, ["full_attention"] * 8
    return Student(config, forecast.WHOLE + 1, tokenizer, Texts.of(tokenizer, chain_sum.make(), questions, []))


def test_a_turn_is_the_example_s_call_with_its_end_and_no_closing_turn(tiny: Student):
    words = tiny.tokenizer.decode(tiny.texts.turn)
    assert words.count("-57") == 1
    assert words.rstrip().endswith(tiny.tokenizer.eos_token)
    assert "Done" not in words


def kept(calls: int, tools: list[dict[str, Any]]) -> dict[str, Any]:
    """An episode of so many calls."""
    turns = []
    for number in range(calls):
        call = {"type": "function", "function": {"name": "answer", "arguments": f'{{"answer": "{10 + number}"}}'}}
        turns.append({"role": "assistant", "content": "", "tool_calls": [call]})
        turns.append({"role": "tool", "name": "answer", "content": "The number is higher."})
    messages = [{"role": "system", "content": "Guess."}, {"role": "user", "content": "Go."}, *turns]
    return {"messages": messages, "tools": json.dumps(tools)}


def test_rows_of_several_turns_are_as_long_as_all_their_turns(chain_sum: Any, tiny: Student):
    tools = chain_sum.make().schemas
    one, three = (Texts.of_rows(tiny.tokenizer, [kept(calls, tools)] * 2, 0) for calls in (1, 3))
    assert (one.turns, three.turns) == (1, 3)
    assert one.rest == one.turn
    assert len(three.turn) == 3 * len(one.turn)
    written = tiny.tokenizer.decode(three.turn)
    assert [str(each) in written for each in (10, 11, 12)] == [True] * 3
    assert "higher" not in written
    assert tiny.tokenizer.decode(three.rest).count("higher") == 2
    assert "Done" not in written
    assert one.prompts == three.prompts
    assert three.exceeds(one)
    assert not one.exceeds(three)
    assert not one.exceeds(one)


def test_an_episode_of_several_turns_may_have_so_many_tokens_in_each(
    chain_sum: Any, tiny: Student, monkeypatch: pytest.MonkeyPatch
):
    asked: list[int] = []
    monkeypatch.setattr(forecast, "of_answers", lambda spec, questions, student, most, ends: asked.append(most))
    evaluation = EvaluateSpec(batch_size=10, questions=10, max_new_tokens=5)
    tools = chain_sum.make().schemas
    for calls in (1, 3):
        texts = Texts.of_rows(tiny.tokenizer, [kept(calls, tools)], 0)
        forecast.of_stages(tiny._replace(texts=texts), {}, evaluation)
    assert asked[0::2] == [5, 15]


def test_turns_are_as_long_as_the_right_calls_that_are_known(chain_sum: Any, tiny: Student):
    calls = [("answer", {"answer": "2"}), ("answer", {"answer": "22222222"})]
    texts = Texts.of(tiny.tokenizer, chain_sum.make(), ["1 + 1 =", "20 + 2 ="], calls)
    assert "22222222" in tiny.tokenizer.decode(texts.turn)
    assert [tiny.tokenizer.decode(row["input_ids"]).count("-57") for row in texts.rows] == [0, 0]
    assert len(texts.rows[1]["input_ids"]) > len(texts.rows[0]["input_ids"])


def test_turns_of_a_student_that_thinks_are_as_long_as_the_working_or_as_half_of_its_budget(chain_sum: Any):
    tokenizer = tokenizer_of([(chain_sum.make(), ["1 + 1 =", "20 + 2 ="])], ThinkingSpec(mode="text", max_tokens=40))
    calls, questions = [("answer", {"answer": "2"}), ("answer", {"answer": "22"})], ["1 + 1 =", "20 + 2 ="]
    known = Texts.of(tokenizer, chain_sum.make(), questions, calls, ["1 + 1 = 2.", "20 + 2 = 22."])
    assert tokenizer.decode(known.turn).startswith(("1 + 1 = 2.", "20 + 2 = 22."))
    assert known.thought == 40
    guessed, without = (Texts.of(tokenizer, chain_sum.make(), questions, each) for each in (calls, []))
    assert 20 <= tokenizer.decode(guessed.turn).count(" 7") * 2 <= 40
    assert len(without.turn) > 20


def test_answers_of_a_model_that_was_saved_while_it_trained_are_measured(
    tiny: Student, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(forecast, "_best", lambda run, model: run() or float(10 + model.config.num_hidden_layers))
    tiny.config.use_cache = False
    assert of_answers(EvaluateSpec(batch_size=4), 4, tiny, 3, ends=False).seconds == pytest.approx(18.0)


def test_what_is_predicted_grows_with_layers_and_is_measured_once(tiny: Student, monkeypatch: pytest.MonkeyPatch):
    depths: list[int] = []

    def best(run: Any, model: Any) -> float:
        run()
        depths.append(model.config.num_hidden_layers)
        return float(10 + depths[-1])

    monkeypatch.setattr(forecast, "_best", best)
    sft = SftSpec(epochs=1, batch_size=4, gradient_accumulation=1, checkpoint_steps=100)
    grpo = GrpoSpec(max_steps=1, batch_size=4, gradient_accumulation=1, num_generations=2, checkpoint_steps=100)

    def found() -> list[float]:
        each = (
            sft_training.forecast(sft, 8, tiny),
            grpo_training.forecast(grpo, 8, tiny),
            of_answers(EvaluateSpec(batch_size=4), 4, tiny, 3, ends=False),
        )
        assert each[0].bytes > forecast.PROCESS + 16 * tiny.weights
        return [round(one.seconds, 3) for one in each]

    assert found() == [2 * 18.0, 2 * 18.0, 18.0], "one layer takes 11, five take 15, so eight take 18"
    measured = len(depths)
    assert set(depths) == {1, 5}
    assert found() == [2 * 18.0, 2 * 18.0, 18.0]
    assert len(depths) == measured


def test_a_small_student_generates_with_all_of_its_layers(tiny: Student, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(forecast, "_best", lambda run, model: run() or float(model.config.num_hidden_layers**2))
    small = tiny._replace(weights=forecast.WHOLE)
    assert of_answers(EvaluateSpec(batch_size=4), 4, small, 3, ends=False).seconds == 64.0
    assert of_answers(EvaluateSpec(batch_size=5), 5, tiny, 3, ends=False).seconds == 1.0 + 7 * 6.0


def test_a_taught_student_writes_what_its_rows_say_and_the_frame_of_a_call_in_one_pass(
    chain_sum: Any, tiny: Student, monkeypatch: pytest.MonkeyPatch
):
    calls = [("answer", {"answer": "2"}), ("answer", {"answer": "22"})]
    known = tiny._replace(texts=Texts.of(tiny.tokenizer, chain_sum.make(), ["1 + 1 =", "20 + 2 ="], calls))
    passes: list[list[int]] = []

    def counted(run: Any, model: Any) -> float:
        forward, widths = model.forward, []
        model.forward = lambda *given, **named: widths.append(named["input_ids"].shape[1]) or forward(*given, **named)
        run()
        passes.append(widths)
        return 1.0

    monkeypatch.setattr(forecast, "_best", counted)
    small, most = known._replace(weights=forecast.WHOLE), len(max(known.texts.answers, key=len))
    for ends in (True, False):
        of_answers(EvaluateSpec(batch_size=4), 4, small, most, ends=ends)
    taught, endless = passes
    assert len(endless) == min(most, forecast.SOME)
    assert len(taught) < most, "what is certain is drafted"


@pytest.mark.parametrize(
    ("weights", "trainings", "measured"),
    [
        pytest.param(10**9, [SftSpec(), GrpoSpec()], True, id="one process, transformers generates"),
        pytest.param(10**9 + 1, [], False, id="more weights than a CPU is asked for"),
        pytest.param(1, [SftSpec(), GrpoSpec(processes=2)], False, id="several processes"),
        pytest.param(1, [SftSpec(lora=LoraSpec(quantized=True))], False, id="four bits"),
        pytest.param(1, [SftSpec(lora=LoraSpec())], True, id="adapters"),
        pytest.param(1, [GrpoSpec(generation=GenerationSpec(engine="vllm"))], False, id="vLLM generates"),
    ],
)
def test_what_a_pass_on_this_machine_says_something_of_is_predicted(
    tiny: Student, monkeypatch: pytest.MonkeyPatch, weights: int, trainings: list[Any], measured: bool
):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert forecast.can_be_measured(tiny.config, weights, trainings) is measured
    assert not forecast.can_be_measured(object(), weights, trainings)


def test_the_quickest_pass_counts_but_for_the_first_which_warms_up(monkeypatch: pytest.MonkeyPatch):
    clock = iter([0.0, 0.125, 1.0, 1.25, 2.0, 2.1875, 3.0, 3.25, 4.0, 4.5, 5.0, 5.5])
    monkeypatch.setattr(forecast.time, "perf_counter", lambda: next(clock))
    assert forecast._best(lambda: None, None) == 0.1875


def test_a_long_pass_is_measured_once_after_one_that_warms_up(monkeypatch: pytest.MonkeyPatch):
    clock = iter([0.0, 9.0, 10.0, 13.0])
    monkeypatch.setattr(forecast.time, "perf_counter", lambda: next(clock))
    assert forecast._best(lambda: None, None) == 3.0


def test_a_measurement_that_other_work_disturbed_is_refused_and_not_kept(
    tiny: Student, monkeypatch: pytest.MonkeyPatch
):
    took = {1: 9.0, 5: 8.0}
    monkeypatch.setattr(forecast, "_best", lambda run, model: took[model.config.num_hidden_layers])
    evaluation = EvaluateSpec(batch_size=4)
    with pytest.raises(RuntimeError, match="5 layers took less than 1"):
        of_answers(evaluation, 4, tiny, 3, ends=False)
    took |= {1: 1.0, 5: 5.0}
    assert of_answers(evaluation, 4, tiny, 3, ends=False).seconds == 8.0


def test_what_is_measured_beside_other_work_is_not_kept_and_what_was_kept_counts(
    tiny: Student, monkeypatch: pytest.MonkeyPatch
):
    slower, busy = iter([9.0, 9.0, 1.0, 1.0, 9.0, 9.0]), iter([True, False, True])
    monkeypatch.setattr(forecast, "_best", lambda run, model: next(slower))
    monkeypatch.setattr(forecast, "is_busy", lambda: next(busy))
    assert [of_answers(EvaluateSpec(batch_size=4), 4, tiny, 3, ends=False).seconds for _ in range(3)] == [9.0, 1.0, 1.0]


@pytest.mark.parametrize(("load", "busy"), [(0.9, False), (1.1, True)])
def test_a_machine_is_busy_where_more_than_half_of_its_cores_are(
    monkeypatch: pytest.MonkeyPatch, load: float, busy: bool
):
    monkeypatch.setattr(forecast.os, "cpu_count", lambda: 2)
    monkeypatch.setattr(forecast.os, "getloadavg", lambda: (load, 0.0, 0.0))
    assert forecast.is_busy.__wrapped__() is busy


def test_the_sentence_has_time_in_its_units_and_memory():
    found = {"SFT": Forecast(200.0, 4.96e9), "GRPO": Forecast(7200.0, 6e9), "10 answers": Forecast(42.4)}
    assert (
        forecast.summary(found)
        == "Predicted for this machine: SFT about 3 min and 5.0 GB, GRPO about 2.0 h and 6.0 GB, 10 answers about 42 s."
    )
