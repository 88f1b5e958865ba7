"""Studies of the real Optuna, whose trials are estimated, trained and run out of memory."""

from __future__ import annotations

import gc
import threading
import weakref

import pytest
import torch

import memagent

optuna = pytest.importorskip("optuna")
pytestmark = pytest.mark.filterwarnings("default")

CANNOT_BE_HAD = 2**50


def make_model():
    return torch.nn.Sequential(
        torch.nn.Linear(1024, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 1)
    )


def train(steps=3):
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with memagent.attach(model, optimizer, project="search", predict=False):
        for _ in range(steps):
            loss = model(torch.randn(4, 8)).pow(2).mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    return loss.item()


@pytest.fixture(autouse=True)
def few_words():
    """Without the traceback of each failed trial."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)


@pytest.fixture
def study():
    return optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))


def outcomes(study):
    return [trial.state.name for trial in study.trials]


def test_a_trial_that_will_not_fit_is_pruned_before_it_allocates(study, clean_settings):
    from memagent.integrations.optuna import prune_out_of_memory, prune_unless_it_fits

    trained = []

    @prune_out_of_memory
    def objective(trial):
        batch = trial.suggest_categorical("batch", [16, 2**19])
        options = {"loss": lambda output, _: output.mean(), "limit_bytes": "2GiB"}
        prune_unless_it_fits(trial, make_model, ((batch, 1024), "float32"), **options)
        trained.append(batch)
        return 1.0

    for batch in (16, 2**19):
        study.enqueue_trial({"batch": batch})
    study.optimize(objective, n_trials=2)
    small, large = study.trials
    assert outcomes(study) == ["COMPLETE", "PRUNED"] and trained == [16]
    assert small.user_attrs["memagent_verdict"] == "fits"
    assert large.user_attrs["memagent_verdict"] == "won't fit"
    # input, two activations and their gradients: at least 2 GiB each
    assert large.user_attrs["memagent_needed_bytes"] > 4 * 2**30
    assert large.user_attrs["memagent_limit_bytes"] == 2 * 2**30
    assert small.constraints["memory"] <= 0 < large.constraints["memory"]


def test_without_a_gpu_the_limit_has_to_be_said(study):
    from memagent.integrations.optuna import prune_unless_it_fits

    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU, whose memory is the limit")
    trial = study.ask()
    with pytest.raises(memagent.MemagentError, match='pass limit_bytes="24GiB"'):
        prune_unless_it_fits(trial, make_model, ((16, 1024), "float32"))


def test_a_trial_that_runs_out_of_memory_is_pruned_and_the_next_one_runs(
    study, clean_settings, capfd
):
    from memagent.integrations.optuna import prune_out_of_memory

    kept = []

    @prune_out_of_memory
    def objective(trial):
        if trial.number == 0:
            activation = torch.ones(2**20)
            kept.append(weakref.ref(activation))
            torch.empty(CANNOT_BE_HAD)
        return train()

    study.optimize(objective, n_trials=2)
    gc.collect()
    assert outcomes(study) == ["PRUNED", "COMPLETE"]
    assert kept[0]() is None
    failed, trained = study.trials
    assert failed.user_attrs == {"memagent_verdict": "out of memory"}
    assert trained.user_attrs["memagent_peak_bytes"] > 0
    (file,) = clean_settings.glob("*.memagent")
    assert trained.user_attrs["memagent_run_id"] in file.name
    assert failed.constraints["memory"] > 0 == trained.constraints["memory"]


def test_the_run_of_a_trial_ends_with_the_trial(study, recording):
    from memagent.integrations.optuna import prune_out_of_memory

    @prune_out_of_memory
    def objective(trial):
        model = torch.nn.Linear(8, 1)
        memagent.attach(model, torch.optim.SGD(model.parameters(), lr=0.1), predict=False)
        torch.empty(CANNOT_BE_HAD)

    study.optimize(objective, n_trials=1)
    assert recording().finish.status == "oom"


def test_a_run_around_the_study_goes_on(study, clean_settings):
    from memagent.integrations.optuna import prune_out_of_memory

    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    @prune_out_of_memory
    def objective(trial):
        torch.empty(CANNOT_BE_HAD)

    with memagent.attach(model, optimizer, predict=False) as run:
        study.optimize(objective, n_trials=1)
        assert run.status == "running"
        assert study.trials[0].user_attrs == {"memagent_verdict": "out of memory"}


def test_a_trial_ends_no_run_of_another_thread(study, clean_settings):
    from memagent.integrations.optuna import prune_out_of_memory

    both, failed = threading.Barrier(2), threading.Event()
    ids = {}

    @prune_out_of_memory
    def objective(trial):
        model = torch.nn.Linear(8, 1)
        if trial.number == 0:
            both.wait()  # until the other trial has its run
            torch.empty(CANNOT_BE_HAD)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with memagent.attach(model, optimizer, predict=False) as run:
            ids[trial.number] = run.id
            both.wait()
            assert failed.wait(60) and run.status == "running"
        return 1.0

    def note(_study, trial):
        if trial.number == 0:
            failed.set()

    study.optimize(objective, n_trials=2, n_jobs=2, callbacks=[note])
    first, second = sorted(study.trials, key=lambda trial: trial.number)
    assert (first.state.name, second.state.name) == ("PRUNED", "COMPLETE")
    assert first.user_attrs == {"memagent_verdict": "out of memory"}
    assert second.user_attrs["memagent_run_id"] == ids[1]


def test_a_pruned_trial_is_no_failure(study, recording):
    def objective(trial):
        model = torch.nn.Linear(8, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with memagent.attach(model, optimizer, predict=False):
            raise optuna.TrialPruned

    study.optimize(objective, n_trials=1)
    assert recording().finish.status == "stopped"


def test_other_errors_end_the_study(study, clean_settings):
    from memagent.integrations.optuna import prune_out_of_memory

    @prune_out_of_memory
    def objective(trial):
        raise ValueError("no such loss")

    with pytest.raises(ValueError, match="no such loss"):
        study.optimize(objective, n_trials=1)
    assert outcomes(study) == ["FAIL"]


LIMIT_BATCH = 100


def too_large(decorate, seed=3):
    """Return how many of 60 trials exceed LIMIT_BATCH, of batches up to 1,024 of which the largest is best."""
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=seed))

    @decorate
    def objective(trial):
        batch = trial.suggest_int("batch", 1, 1024)
        if batch > LIMIT_BATCH:
            torch.empty(CANNOT_BE_HAD)
        return batch

    study.optimize(objective, n_trials=60, catch=RuntimeError)
    return sum(trial.params["batch"] > LIMIT_BATCH for trial in study.trials)


def test_a_sampler_learns_the_limit():
    from memagent.integrations.optuna import prune_out_of_memory

    learned, failed = too_large(prune_out_of_memory), too_large(lambda objective: objective)
    assert learned < 0.9 * failed
