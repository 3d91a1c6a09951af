"""An observer that does not look takes every event."""

from runtime.tokenizer.observer import ChoiceEnd, Observer


def test_an_observer_that_does_not_look_takes_every_event() -> None:
    observer = Observer()

    observer.first_token(0.1)
    observer.inter_token(0.01, 2)
    observer.stage("tokenize", 0.1)
    observer.finished(
        ChoiceEnd(
            "stop",
            index=0,
            seconds=1.0,
            decode_s=0.5,
            prompt_tokens=1,
            cached_tokens=0,
            completion_tokens=3,
        )
    )
    observer.refused("QueueFull")
