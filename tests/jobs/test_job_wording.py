"""Nobody who reads an answer or a page has a command line."""

import pytest

from tcnn_jobs.errors import for_requests


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("stopped; go on with --resume --out run", "stopped; resume the job"),
        ("out of memory; go on with --resume --set micro_batch=4", "out of memory; run it again with micro_batch=4"),
        ("(update 3); go on with --resume --out /home/a/run", "(update 3); resume the job"),
        (
            "x: no weights; give --weights FILE, or --no-pretrained for random ones",
            "x: no weights; name weights of your own (POST /weights), or set pretrained to false for random ones",
        ),
        ("give --batch-size 8 or less", "give batch_size 8 or less"),
        (
            "name a validation set with --val DATASET, or --val-split 0.1",
            "name a validation set with val, or val_split 0.1",
        ),
        ("other stages: --stage 2 (3 in layer2)", "other stages: stage 2 (3 in layer2)"),
        ("use float32 (with --allow-changes)", "use float32"),
        ("a---b 1--2 layer4 -- that is all", "a---b 1--2 layer4 -- that is all"),
    ],
)
def test_options_become_fields(said: str, told: str) -> None:
    assert for_requests(said) == told
