"""How each stage is drawn in the picture of a run.

In: nothing. Out: `BOXES`, by the stage's name.
"""

from apprentice.tasks.collect import collect, collect_shard
from apprentice.tasks.dataset import take_rollouts
from apprentice.tasks.evaluate import evaluate, evaluate_endpoint
from apprentice.tasks.filter import filter_rollouts, filter_thoughts
from apprentice.tasks.gate import gate
from apprentice.tasks.lengths import lengths
from apprentice.tasks.mix import mix_rollouts, mix_thoughts, tried_questions
from apprentice.tasks.questions import (
    exam,
    fresh_questions,
    probe_questions,
    questions,
    rung_questions,
)
from apprentice.tasks.relabel import relabel
from apprentice.tasks.release import release
from apprentice.tasks.rescore import rescore
from apprentice.tasks.student import student
from apprentice.tasks.trainings import TRAININGS
from apprentice.tasks.verdict import verdict

BOXES = {
    each.name: each.drawn
    for each in (
        *(questions, exam, fresh_questions, rung_questions, probe_questions, tried_questions),
        *(
            collect,
            collect_shard,
            rescore,
            take_rollouts,
            relabel,
            filter_rollouts,
            filter_thoughts,
            mix_rollouts,
            mix_thoughts,
            student,
            lengths,
        ),
        *(*(training.stage for training in TRAININGS), evaluate, evaluate_endpoint, verdict, gate, release),
    )
}
