"""Runs that are interrupted: by signals, by SIGKILL at any moment, and by a second process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

# One job completed, one running until it is told to end, one that waits for it.
INTERRUPTED = """
[[job]]
name = "first"
run = "echo first >> starts"
priority = 1
[[job]]
name = "second"
run = "echo second >> starts; echo $$ > begun; read x < go"
[[job]]
name = "third"
run = "echo third >> starts"
needs = ["second"]
"""
UNTIL_THERE = [
    "jobs.toml: 3 jobs, at most 1 at a time, kept in jobs.queue.db",
    "T started     first",
    "T completed   first in N s",
    "T started     second",
]
TO_THE_END = [
    "T started     second",
    "T completed   second in N s",
    "T started     third",
    "T completed   third in N s",
    "3 completed, 0 failed, 0 cancelled of 3 jobs in N s",
]


class Interrupted:
    """A run whose second job is under way."""

    def __init__(self, bench) -> None:
        self.bench = bench
        bench.write(INTERRUPTED)
        self._begun = bench.fifo("begun")
        self._go = bench.fifo("go")
        self.running = self.start()
        self.job = self.begun()

    def start(self):
        return self.bench.start("run", "jobs.toml", "--jobs", "1")

    def begun(self) -> int:
        """Wait for the second job to begin, and return its process id."""
        return int(self._begun.take())

    def go(self) -> None:
        """Let the second job end."""
        self._go.give()

    def kill(self) -> None:
        """Kill the command as a crash would, without a word to its jobs."""
        self.running.send(signal.SIGKILL)
        assert self.running.end().status == -signal.SIGKILL

    def go_on(self):
        """Run the same command to its end."""
        running = self.start()
        self.begun()
        self.go()
        return running.end()


@pytest.fixture
def interrupted(bench) -> Interrupted:
    """A run whose second job is under way."""
    return Interrupted(bench)


def test_goes_on_after_a_kill(interrupted: Interrupted) -> None:
    """S13.1: after SIGKILL the same command runs what is left.

    No finished job runs again; the interrupted one does, after what the killed run left behind was ended.
    """
    interrupted.kill()
    assert interrupted.bench.is_alive(interrupted.job)

    ended = interrupted.go_on()

    assert ended.lines == [
        "jobs.toml: going on with 2 of 3 jobs, at most 1 at a time, kept in jobs.queue.db",
        "T interrupted second: it starts again",
        "T cleaned     second: ended what its interrupted attempt had left running",
        *TO_THE_END,
    ]
    assert ended.status == 0
    assert not interrupted.bench.is_alive(interrupted.job)
    assert interrupted.bench.read("starts") == ["first", "second", "second", "third"]


def test_any_number_of_kills_fails_no_job(interrupted: Interrupted) -> None:
    """S13.1: interruptions use up no attempt and are not bounded: this job has one attempt and survives five kills."""
    for _ in range(5):
        interrupted.kill()
        interrupted.running = interrupted.start()
        interrupted.begun()
    interrupted.go()

    assert interrupted.running.end().lines[3:] == TO_THE_END
    assert interrupted.bench.read("starts") == ["first"] + ["second"] * 6 + ["third"]


def test_an_edited_file_of_an_unfinished_run_is_refused(interrupted: Interrupted) -> None:
    """S13.1: an edited file answers 2 and says what to do; with the old text back, the run goes on."""
    interrupted.kill()
    interrupted.bench.write(f"{INTERRUPTED}# edited\n")

    refused = interrupted.bench.run()

    assert (refused.status, refused.lines) == (2, [])
    assert refused.errors == (
        "durable_queue run: error: jobs.toml: the file was changed, and a run of its old text is not finished "
        "(2 of 3 jobs left). Put the old text back to finish it, name another database with --db, or delete the "
        "files jobs.queue.db* to give it up\n"
    )
    assert interrupted.bench.read("starts") == ["first", "second"]
    interrupted.bench.write(INTERRUPTED)
    assert interrupted.go_on().status == 0


def test_another_file_in_the_database_of_an_unfinished_run_is_refused(interrupted: Interrupted) -> None:
    """A database holds one unfinished run at a time; the other file is named."""
    interrupted.kill()
    interrupted.bench.write('[[job]]\nname = "other"\nrun = "echo other >> starts"\n', "other.toml")

    refused = interrupted.bench.run("--db", "jobs.queue.db", file="other.toml")

    assert (refused.status, refused.lines) == (2, [])
    assert refused.errors == (
        "durable_queue run: error: jobs.queue.db: holds an unfinished run of jobs.toml (2 of 3 jobs left); "
        "finish that one first or name another database with --db\n"
    )
    assert interrupted.go_on().status == 0
    assert interrupted.bench.run("--db", "jobs.queue.db", file="other.toml").status == 0
    assert interrupted.bench.read("starts")[-1] == "other"


def test_a_second_process_is_refused(interrupted: Interrupted) -> None:
    """S7.9: while a run is worked on, the same command answers 2 and touches nothing."""
    refused = interrupted.bench.run()

    assert (refused.status, refused.lines) == (2, [])
    assert refused.errors == (
        "durable_queue run: error: jobs.queue.db: another process works on it; wait for its end or name another "
        "with --db\n"
    )
    interrupted.go()
    ended = interrupted.running.end()
    assert ended.lines == [*UNTIL_THERE, *TO_THE_END[1:]]
    assert ended.status == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_stops_the_run_gracefully(interrupted: Interrupted, number: signal.Signals) -> None:
    """The first signal ends running jobs after a grace and puts them back; the same command goes on."""
    interrupted.running.send(number)
    ended = interrupted.running.end()

    assert ended.lines == [
        *UNTIL_THERE,
        f"T stopping    {number.name}: 1 running job may end within 2.0 s; once more to end at once",
        "T stopped     second: it starts again next time",
        "1 completed, 0 failed, 0 cancelled, 2 left of 3 jobs in N s",
        "stopped; the same command goes on with what is left",
    ]
    assert (ended.status, ended.errors) == (128 + number, "")
    assert not interrupted.bench.is_alive(interrupted.job)
    again = interrupted.go_on()
    assert again.lines == [
        "jobs.toml: going on with 2 of 3 jobs, at most 1 at a time, kept in jobs.queue.db",
        *TO_THE_END,
    ]
    assert again.status == 0


def test_a_job_that_ends_within_the_grace_is_done(interrupted: Interrupted) -> None:
    """A running job that ends within the grace is completed; nothing new starts."""
    interrupted.running.send(signal.SIGTERM)
    interrupted.running.wait_for("T stopping")
    interrupted.go()
    ended = interrupted.running.end()

    assert ended.lines[5:] == [
        "T completed   second in N s",
        "2 completed, 0 failed, 0 cancelled, 1 left of 3 jobs in N s",
        "stopped; the same command goes on with what is left",
    ]
    assert ended.status == 128 + signal.SIGTERM
    assert interrupted.bench.run().status == 0
    assert interrupted.bench.read("starts") == ["first", "second", "third"]


def test_a_stop_that_finds_everything_done_answers_as_usual(bench) -> None:
    """When the last job ends within the grace the run is finished, and so is its status."""
    begun, go = bench.fifo("begun"), bench.fifo("go")
    bench.write('[[job]]\nname = "only"\nrun = "echo > begun; read x < go; exit 4"\n')
    running = bench.start("run", "jobs.toml")
    begun.take()
    running.send(signal.SIGINT)
    running.wait_for("T stopping")
    go.give()
    ended = running.end()

    assert ended.lines[-1] == "failed      only: exit status 4; log: jobs.queue.db-logs/only.log"
    assert ended.status == 1


def test_a_second_signal_ends_at_once(bench) -> None:
    """The second signal kills the jobs, however stubborn, and ends the command; the run goes on next time."""
    begun = bench.fifo("begun")
    bench.write(
        '[[job]]\nname = "stubborn"\n'
        "run = \"trap '' TERM INT; test -e once && exit; touch once; echo $$ > begun; while :; do sleep 600; done\"\n"
    )
    running = bench.start("run", "jobs.toml")
    job = int(begun.take())
    running.send(signal.SIGINT)
    running.wait_for("T stopping")
    running.send(signal.SIGTERM)
    ended = running.end()

    assert ended.status == 128 + signal.SIGTERM
    assert ended.lines[-1].startswith("T stopping"), "there is no time for a summary"
    assert bench.ends(job)
    assert bench.run().status == 0


def test_an_ignored_signal_stays_ignored(bench) -> None:
    """What `nohup` or a shell's background job has had ignored does not stop the run."""
    begun, go = bench.fifo("begun"), bench.fifo("go")
    bench.write(
        '[[job]]\nname = "a"\nrun = "echo > begun; read x < go"\n[[job]]\nname = "b"\nrun = "true"\nneeds = ["a"]\n'
    )
    code = (
        "import os, signal, sys; signal.signal(signal.SIGHUP, signal.SIG_IGN);"
        "os.execv(sys.executable, sys.argv[1:])"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, sys.executable, "-m", "durable_queue", "run", "jobs.toml"],
        cwd=bench.folder,
        env=bench.environment,
        stdout=subprocess.DEVNULL,
    )
    begun.take()
    process.send_signal(signal.SIGHUP)
    go.give()

    assert process.wait() == 0


def test_random_kills(bench) -> None:
    """S13.1: killed at random moments and started again, the run loses no job and does none twice.

    No attempt of a job overlaps another, and the database stays whole.
    """
    script = Path(__file__).with_name("kill_sweep.py")
    subprocess.run(
        [sys.executable, script, "--kills", "3", "--seed", "20240229"],
        cwd=bench.folder,
        env={**os.environ, **bench.environment},
        check=True,
        stdout=subprocess.DEVNULL,
    )
