"""The main job on real input: two real trainings, a real limit, a real death, and the warning that came before it.

`train.py` is an ordinary training script; `receiver.py` speaks Slack's webhook protocol; `stage.py` starts the processes;
`story.py` reads from the server what happened and tells it.
"""
