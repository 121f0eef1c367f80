"""What a person holds and sees: the `Trainer`, the terminal, the verdict, the evaluations, the finished run."""
