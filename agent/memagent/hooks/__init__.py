"""Hooks that decide when to read: optimizer hooks end steps, module hooks end phases, exit hooks
report how the run ended.

No object of the script holds any of them: modules have hidden hooks (see `hidden_hooks`), and
optimizers none (see `step.StepDispatcher`). So files, copies and comparisons are the script's own.
"""
