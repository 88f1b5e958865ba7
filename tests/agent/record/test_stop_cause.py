from __future__ import annotations

import pytest

from memagent.record.stop_cause import stop_cause

JOB = {"SLURM_JOB_ID": "4711", "SLURM_JOB_END_TIME": "10000"}


@pytest.mark.parametrize(
    ("signal", "environ", "now", "cause"),
    [
        ("SIGTERM", {}, 0, "another process or a user sent it"),
        ("SIGTERM", JOB, 10_000, "Slurm job 4711 reached its time limit"),
        ("SIGTERM", JOB, 9_911, "Slurm job 4711 reached its time limit"),
        ("SIGTERM", JOB, 9_000, "Slurm job 4711 was preempted or cancelled"),
        ("SIGUSR1", {"SLURM_JOB_ID": "4711"}, 0, "Slurm job 4711 was preempted or cancelled"),
        (
            "SIGTERM",
            {**JOB, "SLURM_JOB_END_TIME": "soon"},
            10_000,
            "Slurm job 4711 was preempted or cancelled",
        ),
        (
            "SIGTERM",
            {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "HOSTNAME": "train-0"},
            0,
            "Kubernetes stopped train-0 (evicted, preempted or deleted)",
        ),
        ("SIGTERM", {"PBS_JOBID": "12.head"}, 0, "PBS ended job 12.head"),
        (
            "SIGTERM",
            {**JOB, "TORCHELASTIC_RUN_ID": "x"},
            0,
            "Slurm job 4711 was preempted or cancelled, or torchrun stopped this rank, as it does "
            "when another has failed",
        ),
        ("SIGHUP", JOB, 10_000, "the terminal was closed"),
        ("SIGXCPU", {}, 0, "the limit of processor time was reached"),
    ],
)
def test_the_environment_tells_who_stopped_the_process(signal, environ, now, cause):
    assert stop_cause(signal, environ, now) == cause
