"""Workers that fail: one end for everybody, one budget of restarts."""
import os

from job import PROBE, Job
from lab import case, note


@case(nodes=3)
def c21_one_rank_ends_the_job_everywhere(lab):
    slowest = 0
    runs = 50 if "DTRUN_FULL_SIZE" in os.environ else 10
    for _ in range(runs):
        job = Job(lab, 3, ["--nproc-per-node=2"], [PROBE, "rank=3", "sleep=0.2", "error=the real reason", "exit=3", "end", "forever"])
        first, culprit, third = job.start(0, 1, 2)
        assert [dtrun.wait(10) for dtrun in job.all] == [3, 3, 3]
        death = next(event["monotonic"] for event in culprit.events("worker_ended") if event["rank"] == 3)
        slowest = max(slowest, *(dtrun.ended_at - death for dtrun in job.all))
        for dtrun in (first, third):
            assert len(dtrun.error_lines) == 1 and "rank 3 on node1" in dtrun.error, dtrun.error_lines
            elsewhere = dtrun.report["failure_elsewhere"]
            assert elsewhere["rank"] == 3 and elsewhere["host"] == "node1" and dtrun.report["root_cause"] is None
        assert "root cause: rank 3 on node1" in culprit.error and culprit.error.count("the real reason") == 2, culprit.error_lines
        assert culprit.report["root_cause"]["rank"] == 3 and culprit.report["root_cause"]["stderr_tail"] == ["the real reason"]
    note(f"{runs} runs: everybody is out {slowest * 1000:.0f} ms after the death, at the latest")
    assert slowest < 1


def crash_loop(lab, options, rounds, program):
    """Workers of node 1 fail, those of node 0 never."""
    job = Job(lab, 2, ["--nproc-per-node=1", *options])
    good, bad = job.start(0), job.start(1, program=program)
    assert [dtrun.wait(20) for dtrun in job.all] == [7, 7]
    for dtrun in job.all:
        assigned = [(event["attempt"], event["restarts"]) for event in dtrun.events("assignment")]
        assert assigned == [(number, number) for number in range(rounds)], assigned
        assert len(dtrun.events("worker_started")) == rounds
    good_report, bad_report = good.report, bad.report
    for name in ("outcome", "exit_code", "restarts_used", "world_size", "max_restarts"):
        assert good_report[name] == bad_report[name], name
    assert bad_report["outcome"] == "failure" and bad_report["restarts_used"] == rounds - 1
    assert len(good_report["attempts"]) == len(bad_report["attempts"]) == rounds
    assert good_report["failure_elsewhere"]["rank"] == bad_report["root_cause"]["rank"] == 1
    return job


@case(nodes=2)
def a10_the_budget_is_the_whole_jobs(lab):
    job = crash_loop(lab, ["--max-restarts=3"], 4, [PROBE, "sleep=0.1", "env=TORCHELASTIC_RESTART_COUNT", "exit=7"])
    assert [line.split("=")[1] for line in job.all[1].out_lines] == ["0", "1", "2", "3"]
    job = Job(lab, 2, ["--nproc-per-node=1", "--max-restarts=3"], [PROBE, "env=TORCHELASTIC_RESTART_COUNT", "rank=1", "sleep=0.1", "exit=7", "end", "forever"])
    job.start(0, 1)
    assert [dtrun.wait(20) for dtrun in job.all] == [7, 7]
    assert job.all[0].out_lines == job.all[1].out_lines == [f"TORCHELASTIC_RESTART_COUNT={number}" for number in range(4)]


@case(nodes=2)
def a10_both_nodes_fail_in_turns(lab):
    """Whoever fails, it counts once."""
    script = 'if [ $((TORCHELASTIC_RESTART_COUNT % 2)) = "$RANK" ]; then sleep 0.1; exit 7; fi; exec sleep 600'
    job = Job(lab, 2, ["--nproc-per-node=1", "--max-restarts=3", "--no-python"], ["sh", "-c", script])
    job.start(0, 1)
    assert [dtrun.wait(20) for dtrun in job.all] == [7, 7]
    assert [[event["restarts"] for event in dtrun.events("assignment")] for dtrun in job.all] == [[0, 1, 2, 3]] * 2
    assert job.all[0].report["restarts_used"] == job.all[1].report["restarts_used"] == 3


@case(nodes=2)
def a10_no_progress_stops_it(lab):
    """--max-restarts would allow a hundred."""
    job = crash_loop(lab, ["--max-restarts=100", "--max-no-progress-restarts=2"], 3, [PROBE, "progress=5", "sleep=0.1", "exit=7"])
    for dtrun in job.all:
        assert "no further than step 5" in dtrun.report["no_restart"], dtrun.report["no_restart"]


@case(nodes=2)
def workers_that_did_not_stop_are_named_by_their_ranks(lab):
    job = Job(lab, 2, ["--nproc-per-node=2", "--grace-period=0.3"], [PROBE, "ignore=TERM", "rank=0", "sleep=0.2", "exit=3", "end", "forever"])
    first, second = job.start(0, 1)
    assert [dtrun.wait(10) for dtrun in job.all] == [3, 3]
    assert "dtrun: killed, because they did not stop in time: rank 2, 3" in second.error_lines, second.error_lines
    assert "did not stop in time: rank 1" in first.error
