"""Where SFT stops."""

from transformers import TrainerControl

from apprentice.tasks.sft import _stopper


def test_sft_stops_at_the_first_log_that_is_right_often_enough():
    stopper, control = _stopper(0.9), TrainerControl()
    for accuracy, stops in ((0.5, False), (0.89, False), (0.93, True)):
        stopper.on_log(None, None, control, {"loss": 1.0, "mean_token_accuracy": accuracy})
        assert control.should_training_stop == stops
