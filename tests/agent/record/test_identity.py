"""One run id for all ranks of a launch, with the environments that launchers really set."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest

from memagent.record.identity import Identity, identify
from memagent.record.identity import launcher as real_launcher

TORCHRUN = {
    "TORCHELASTIC_RUN_ID": "none",
    "TORCHELASTIC_RESTART_COUNT": "0",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "29500",
    "WORLD_SIZE": "4",
    "LOCAL_WORLD_SIZE": "4",
    "GROUP_RANK": "0",
}
TORCHRUN_NODES = {
    **TORCHRUN,
    "TORCHELASTIC_RUN_ID": "9f1c",
    "MASTER_ADDR": "node1",
    "LOCAL_WORLD_SIZE": "2",
}
SRUN = {
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_NTASKS": "4",
    "SLURM_CLUSTER_NAME": "big",
    "SLURM_SUBMIT_HOST": "login1",
}
OPEN_MPI_4 = {
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "OMPI_MCA_ess_base_jobid": "2467495937",
}
OPEN_MPI_5 = {
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "PMIX_NAMESPACE": "prterun-node1-4711@1",
}
HYDRA = {"PMI_SIZE": "4", "MPI_LOCALNRANKS": "4"}
PALS = {"PMI_SIZE": "4", "PALS_APID": "b7e1a5f2-5c0d-4a3e"}
DEEPSPEED = {
    "WORLD_SIZE": "4",
    "LOCAL_SIZE": "4",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "29500",
    "CROSS_SIZE": "1",
}

LAUNCHERS = {
    "torchrun": (TORCHRUN, "RANK"),
    "torchrun, nodes": (TORCHRUN_NODES, "RANK"),
    "accelerate launch": ({**TORCHRUN, "ACCELERATE_MIXED_PRECISION": "bf16"}, "RANK"),
    "torchrun in Slurm": (
        {**TORCHRUN_NODES, **SRUN, "SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "0"},
        "RANK",
    ),
    "srun": (SRUN, "SLURM_PROCID"),
    "Open MPI 4": (OPEN_MPI_4, "OMPI_COMM_WORLD_RANK"),
    "Open MPI 5": (OPEN_MPI_5, "OMPI_COMM_WORLD_RANK"),
    "MPICH, Intel MPI": (HYDRA, "PMI_RANK"),
    "Cray PALS": (PALS, "PMI_RANK"),
    "DeepSpeed": (DEEPSPEED, "RANK"),
}


def at(
    environ: dict[str, str],
    *,
    launcher: str = "node1:4711:99",
    run_id: str | None = None,
    **options,
) -> Identity:
    return identify(
        run_id, environ, launcher=lambda _environ: launcher, group=lambda: None, **options
    )


@pytest.mark.parametrize(("environ", "rank_name"), LAUNCHERS.values(), ids=LAUNCHERS)
def test_all_ranks_of_a_launch_arrive_at_one_id_without_talking(environ, rank_name):
    identities = [at({**environ, rank_name: str(rank)}) for rank in range(4)]
    assert [identity.rank for identity in identities] == [0, 1, 2, 3]
    assert {identity.world_size for identity in identities} == {4}
    assert {identity.note for identity in identities} == {None}
    assert len({identity.run_id for identity in identities}) == 1


@pytest.mark.parametrize(
    ("environ", "other"),
    [
        (SRUN, {"SLURM_JOB_ID": "8"}),
        (SRUN, {"SLURM_STEP_ID": "1"}),
        (SRUN, {"SLURM_CLUSTER_NAME": "small"}),
        (OPEN_MPI_4, {"OMPI_MCA_ess_base_jobid": "2467495938"}),
        (OPEN_MPI_5, {"PMIX_NAMESPACE": "prterun-node1-4712@1"}),
        (TORCHRUN_NODES, {"TORCHELASTIC_RUN_ID": "a0b1"}),
        (PALS, {"PALS_APID": "other"}),
    ],
)
def test_another_launch_has_another_id(environ, other):
    assert at({**environ, "RANK": "1"}).run_id != at({**environ, **other, "RANK": "1"}).run_id


@pytest.mark.parametrize(
    "environ", [TORCHRUN, DEEPSPEED, HYDRA, {**TORCHRUN, "TORCHELASTIC_RUN_ID": "456"}]
)
def test_launches_of_one_name_on_one_machine_differ_by_their_launcher(environ):
    assert at(environ, launcher="a").run_id != at(environ, launcher="b").run_id


def test_an_elastic_restart_is_a_new_attempt_of_the_same_run():
    restarted = {"TORCHELASTIC_RESTART_COUNT": "1", "MASTER_PORT": "51234"}
    for environ in (TORCHRUN, TORCHRUN_NODES):
        first, second = at(environ, now_s=1.0), at({**environ, **restarted}, now_s=60.0)
        assert first.run_id == second.run_id
        assert first.attempt < second.attempt


def test_a_requeued_slurm_job_is_the_same_run():
    assert (
        at(SRUN, launcher="a").run_id
        == at({**SRUN, "SLURM_RESTART_COUNT": "1"}, launcher="b").run_id
    )


def test_the_runs_of_one_process_differ():
    assert at(TORCHRUN).run_id != at(TORCHRUN, ordinal=1).run_id


def test_a_shared_address_alone_gives_a_note():
    static = {**TORCHRUN, "MASTER_ADDR": "node1", "LOCAL_WORLD_SIZE": "2"}
    first, second = at({**static, "RANK": "0"}), at({**static, "RANK": "3"}, launcher="node2:1:1")
    assert first.run_id == second.run_id
    assert first.note is not None
    assert "MASTER_PORT=29500" in first.note
    assert "MEMAGENT_RUN_ID" in first.note


def test_without_shared_facts_each_rank_records_a_separate_run_with_a_note():
    lone = {"PMI_SIZE": "4", "PMI_RANK": "1", "MPI_LOCALNRANKS": "2"}
    assert at(lone).run_id != at(lone).run_id
    assert "MEMAGENT_RUN_ID" in (at(lone).note or "")


def test_two_single_processes_have_two_ids():
    assert at({}).run_id != at({}).run_id
    assert at({}).note is None


def test_a_script_in_a_batch_job_without_srun_is_a_single_process():
    batch = {"SLURM_JOB_ID": "7", "SLURM_PROCID": "0", "SLURM_NTASKS": "8"}
    assert at(batch).world_size == 1
    assert at(batch).run_id != at(batch).run_id


def test_the_users_id_wins():
    identity = at({**TORCHRUN, "RANK": "2"}, run_id="mine", now_s=12.5)
    assert identity == Identity("mine", rank=2, world_size=4, attempt=12500)


def test_an_initialised_process_group_knows_better_than_the_environment():
    one_task = {**SRUN, "SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"}
    ranks = [identify(None, one_task, group=lambda rank=rank: (rank, 2)) for rank in range(2)]
    assert [(identity.rank, identity.world_size) for identity in ranks] == [(0, 2), (1, 2)]
    assert ranks[0].run_id == ranks[1].run_id


def test_torchruns_workers_really_arrive_at_one_id(tmp_path):
    """Launch two workers with the real torchrun twice, each in a shell: one id per launch."""
    script = tmp_path / "show.py"
    script.write_text(
        textwrap.dedent("""
        from memagent.record.identity import identify
        identity = identify()
        line = f"ID {identity.run_id} {identity.rank} {identity.world_size}\\n"
        print(line, end="", flush=True)  # in one write, because two workers share the pipe
        """)
    )
    shell = tmp_path / "worker.sh"
    shell.write_text(f"#!/bin/sh\n{sys.executable} {script}\ntrue\n")
    shell.chmod(0o755)

    def launch() -> list[list[str]]:
        rendezvous = [
            "--rdzv-backend=c10d",
            "--rdzv-endpoint=localhost:0",
        ]  # any free port; the launch is called "none"
        command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", *rendezvous]
        done = subprocess.run(
            [*command, "--no-python", str(shell)], capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stderr
        return sorted(
            line.split()[1:] for line in done.stdout.splitlines() if line.startswith("ID")
        )

    first, second = launch(), launch()
    assert [line[1:] for line in first] == [["0", "2"], ["1", "2"]]
    assert first[0][0] == first[1][0] != second[0][0] == second[1][0]


def test_spawned_processes_share_the_one_that_spawned_them():
    assert real_launcher({}).split(":")[1] == str(os.getppid())
