from __future__ import annotations

from memagent.identity import identify

TORCHRUN = {"TORCHELASTIC_RUN_ID": "none", "MASTER_ADDR": "box", "MASTER_PORT": "29500", "WORLD_SIZE": "4"}


def test_all_ranks_of_a_launch_arrive_at_one_id_without_talking():
    ids = {identify(None, {**TORCHRUN, "RANK": str(rank)}).run_id for rank in range(4)}
    assert len(ids) == 1


def test_another_launch_has_another_id():
    first = identify(None, {**TORCHRUN, "RANK": "0"})
    second = identify(None, {**TORCHRUN, "RANK": "0", "MASTER_PORT": "29501"})
    assert first.run_id != second.run_id


def test_two_single_processes_have_two_ids():
    assert identify(None, {}).run_id != identify(None, {}).run_id


def test_the_users_id_wins():
    assert identify("mine", {**TORCHRUN, "RANK": "2"}).run_id == "mine"


def test_rank_and_world_size_come_from_the_launcher():
    identity = identify(None, {"SLURM_PROCID": "3", "SLURM_NTASKS": "8", "SLURM_JOB_ID": "7"}, now_s=12.5)
    assert (identity.rank, identity.world_size, identity.attempt) == (3, 8, 12500)
