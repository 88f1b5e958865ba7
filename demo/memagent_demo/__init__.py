"""The demo: two real trainings, a real limit, a real crash, and the warning that came before it.

`train.py` is an ordinary training script, `fake_slack.py` speaks the protocol of Slack webhooks,
`processes.py` starts the server and the trainings, `summary.py` reads the outcome from the server.
"""
