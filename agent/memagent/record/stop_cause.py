"""The sender of a signal that stopped the process, as the environment suggests. Pure."""

from __future__ import annotations

from collections.abc import Mapping

TIME_LIMIT_SLACK_S = 90.0
"""Slurm looks at time limits twice a minute, and a clock may be off by as much."""
_FIXED = {"SIGHUP": "the terminal was closed", "SIGXCPU": "the limit of processor time was reached"}
_BATCH_SYSTEMS = {"PBS_JOBID": "PBS", "LSB_JOBID": "LSF", "JOB_ID": "the batch system"}


def stop_cause(signal_name: str, environ: Mapping[str, str], now: float) -> str:
    """Return one clause, such as `Slurm job 4711 reached its time limit`.

    now: UTC epoch seconds. A Slurm job knows its end (SLURM_JOB_END_TIME, sbatch(1)), but not
    whether it is preempted or cancelled. torchrun stops the other ranks when one has failed.
    """
    if signal_name in _FIXED:
        return _FIXED[signal_name]
    job = environ.get("SLURM_JOB_ID")
    if job and _is_over(environ.get("SLURM_JOB_END_TIME"), now):
        return f"Slurm job {job} reached its time limit"
    causes = [f"Slurm job {job} was preempted or cancelled"] if job else []
    if "KUBERNETES_SERVICE_HOST" in environ:
        pod = environ.get("POD_NAME") or environ.get("HOSTNAME") or "its pod"
        causes.append(f"Kubernetes stopped {pod} (evicted, preempted or deleted)")
    for name, system in _BATCH_SYSTEMS.items():
        if not causes and environ.get(name):
            causes.append(f"{system} ended job {environ[name]}")
    if "TORCHELASTIC_RUN_ID" in environ:
        causes.append("torchrun stopped this rank, as it does when another has failed")
    return ", or ".join(causes) or "another process or a user sent it"


def _is_over(end: str | None, now: float) -> bool:
    return end is not None and end.isdecimal() and now >= int(end) - TIME_LIMIT_SLACK_S
