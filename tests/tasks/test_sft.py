"""Where SFT stops."""

from types import SimpleNamespace
from typing import Any

from transformers import TrainerControl

from apprentice.tasks.sft import _stop_at


def test_sft_stops_at_the_first_log_that_is_right_often_enough():
    added: list[Any] = []
    _stop_at(SimpleNamespace(add_callback=added.append), 0.9)
    control = TrainerControl()
    for accuracy, stops in ((0.5, False), (0.89, False), (0.93, True)):
        added[0].on_log(None, None, control, logs={"loss": 1.0, "mean_token_accuracy": accuracy})
        assert control.should_training_stop == stops
