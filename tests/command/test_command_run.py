"""``python -m durable_queue run``: what it runs, says and answers when nobody interrupts it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import durable_queue

THREE_JOBS = """
[[job]]
name = "one"
run = "echo one >> done"
[[job]]
name = "two"
run = "echo two >> done"
needs = ["one"]
[[job]]
name = "urgent"
run = "echo urgent >> done"
priority = 5
"""


def test_runs_every_job_in_order(bench) -> None:
    """Jobs run by priority, then in the order of the file, after what they need; status 0 when all completed."""
    bench.write(THREE_JOBS)

    ended = bench.run()

    assert ended.lines == [
        "jobs.toml: 3 jobs, at most 1 at a time, kept in jobs.queue.db",
        "T started     urgent",
        "T completed   urgent in N s",
        "T started     one",
        "T completed   one in N s",
        "T started     two",
        "T completed   two in N s",
        "3 completed, 0 failed, 0 cancelled of 3 jobs in N s",
    ]
    assert (ended.status, ended.errors) == (0, "")
    assert bench.read("done") == ["urgent", "one", "two"]


def test_a_finished_run_is_reported_not_repeated(bench) -> None:
    """S13.1: the same file once more runs nothing and answers as the run did."""
    bench.write(THREE_JOBS)
    bench.run()

    again = bench.run()

    assert again.lines == [
        (
            "jobs.toml: this run has finished before; to run it once more, change the file, name another database "
            "with --db, or delete the files jobs.queue.db*"
        ),
        "3 completed, 0 failed, 0 cancelled of 3 jobs",
    ]
    assert again.status == 0
    assert bench.read("done") == ["urgent", "one", "two"]


def test_a_finished_run_that_failed_is_reported_as_failed(bench) -> None:
    """S13.1: a run that ended with failures keeps its status and its summary."""
    bench.write('[[job]]\nname = "bad"\nrun = "exit 3"\n')
    first = bench.run()

    again = bench.run()

    assert first.status == again.status == 1
    assert again.lines[1:] == [
        "0 completed, 1 failed, 0 cancelled of 1 job",
        "failed      bad: exit status 3; log: jobs.queue.db-logs/bad.log",
    ]


def test_a_changed_file_after_a_finished_run_is_a_new_run(bench) -> None:
    """S13.1: new content is a new run, once the old one has finished."""
    bench.write('[[job]]\nname = "a"\nrun = "echo first >> done"\n')
    bench.run()
    bench.write('[[job]]\nname = "a"\nrun = "echo second >> done"\n')

    assert bench.run().status == 0
    assert bench.read("done") == ["first", "second"]


def test_a_failure_names_its_reason_and_its_log(bench) -> None:
    """A failed job makes the status 1; its line and the summary tell the reason and the log, which has its output."""
    bench.write('[[job]]\nname = "bad"\nrun = "echo to out; echo to err >&2; exit 3"\n')

    ended = bench.run()

    assert ended.lines[1:] == [
        "T started     bad",
        "T failed      bad: exit status 3; log: jobs.queue.db-logs/bad.log",
        "0 completed, 1 failed, 0 cancelled of 1 job in N s",
        "failed      bad: exit status 3; log: jobs.queue.db-logs/bad.log",
    ]
    assert ended.status == 1
    begin, *output, end = bench.read("jobs.queue.db-logs/bad.log")
    assert begin.endswith("attempt 1 of 1: echo to out; echo to err >&2; exit 3")
    assert output == ["to out", "to err"]
    assert end.startswith("--- exit status 3 (attempt 1 of 1, ")


def test_retries(bench) -> None:
    """`retries` is how many attempts follow the first, `retry_delay` apart; every attempt is kept in the log."""
    bench.write(
        '[[job]]\nname = "third-time"\nretries = 2\nretry_delay = "20ms"\n'
        'run = "echo $DURABLE_QUEUE_ATTEMPT >> tries; test $DURABLE_QUEUE_ATTEMPT = 3"\n'
        '[[job]]\nname = "never"\nretries = 1\nretry_delay = 0\nrun = "exit 7"\n'
    )

    ended = bench.run()

    log = "log: jobs.queue.db-logs"
    assert sorted(ended.lines[1:-2]) == sorted(
        [
            "T started     third-time (attempt 1 of 3)",
            f"T retry       third-time (attempt 1 of 3): exit status 1; again in N s; {log}/third-time.log",
            "T started     third-time (attempt 2 of 3)",
            f"T retry       third-time (attempt 2 of 3): exit status 1; again in N s; {log}/third-time.log",
            "T started     third-time (attempt 3 of 3)",
            "T completed   third-time in N s",
            "T started     never (attempt 1 of 2)",
            f"T retry       never (attempt 1 of 2): exit status 7; again in N s; {log}/never.log",
            "T started     never (attempt 2 of 2)",
            f"T failed      never (attempt 2 of 2): exit status 7; {log}/never.log",
        ]
    )
    assert ended.lines[-2:] == [
        "1 completed, 1 failed, 0 cancelled of 2 jobs in N s",
        f"failed      never (attempt 2 of 2): exit status 7; {log}/never.log",
    ]
    assert bench.read("tries") == ["1", "2", "3"]
    assert (
        len([line for line in bench.read("jobs.queue.db-logs/third-time.log") if line.startswith("---")]) == 6
    )


def test_what_cannot_start_is_a_failed_attempt(bench) -> None:
    """A missing program or folder fails the attempt with a clear reason and is retried like any failure."""
    bench.write(
        '[[job]]\nname = "typo"\nrun = ["no-such-program"]\nretries = 1\nretry_delay = 0\n'
        '[[job]]\nname = "nowhere"\nrun = "true"\ncwd = "none"\n'
        '[[job]]\nname = "later"\nrun = "mkdir later"\n'
        '[[job]]\nname = "inside"\nrun = "touch here"\ncwd = "later"\nneeds = ["later"]\n'
    )

    ended = bench.run()

    assert ended.status == 1
    assert ended.lines[-2:] == [
        "failed      typo (attempt 2 of 2): command not found: 'no-such-program'; log: jobs.queue.db-logs/typo.log",
        (
            f"failed      nowhere: there is no folder '{bench.folder}/none' to run it in; "
            "log: jobs.queue.db-logs/nowhere.log"
        ),
    ]
    assert (bench.folder / "later" / "here").exists()


def test_a_timeout_ends_the_attempt_and_its_whole_tree(bench) -> None:
    """`timeout` bounds one attempt: its tree is ended, the reason told, and a retry may follow."""
    bench.write(
        '[[job]]\nname = "slow"\ntimeout = "1000ms"\nretries = 1\nretry_delay = 0\n'
        'run = "test $DURABLE_QUEUE_ATTEMPT = 2 && exit; sleep 600 & echo $$ $! > pids; wait"\n'
    )

    ended = bench.run()

    assert ended.status == 0
    assert ended.lines[2] == (
        "T retry       slow (attempt 1 of 2): timed out after 1.0 s; again in N s; log: jobs.queue.db-logs/slow.log"
    )
    (pids,) = bench.read("pids")
    assert [pid for pid in pids.split() if bench.is_alive(pid)] == []


def test_the_world_of_a_job(bench) -> None:
    """A job sees `cwd`, `env` on top of the inherited variables, its name and attempt, and the same Python."""
    (bench.folder / "sub").mkdir()
    bench.environment["INHERITED"] = "from outside"
    bench.environment["CHANGED"] = "from outside"
    code = (
        "import os, sys; names = ['INHERITED', 'CHANGED', 'DURABLE_QUEUE_JOB', 'DURABLE_QUEUE_ATTEMPT'];"
        "print(*(os.environ[name] for name in names), os.getcwd(), sep='|');"
        "print(sys.executable == os.environ['DURABLE_QUEUE_PYTHON'], sys.argv[1:], sys.stdin.read() == '')"
    )
    bench.write(
        f"""
        [[job]]
        name = "look around"
        run = ["{{python}}", "-c", "{code}", "{{python}}", "{{python}}!"]
        cwd = "sub"
        env = {{CHANGED = "from the file"}}
        """
    )

    assert bench.run().status == 0
    (log,) = (bench.folder / "jobs.queue.db-logs").glob("look-around~*.log")
    assert log.read_text().splitlines()[1:-1] == [
        f"from outside|from the file|look around|1|{bench.folder / 'sub'}",
        f"True ['{sys.executable}', '{{python}}!'] True",
    ]


def test_the_three_ways_when_a_needed_job_fails(bench) -> None:
    """S4.3: `cancel`, the default, cancels the job, `fail` fails it, `run` runs it; each line tells the cause."""
    bench.write(
        """
        [[job]]
        name = "bad"
        run = "exit 1"
        [[job]]
        name = "default"
        run = "echo default >> done"
        needs = ["bad"]
        [[job]]
        name = "cancels"
        run = "echo cancels >> done"
        needs = ["default"]
        if_needed_fails = "cancel"
        [[job]]
        name = "fails"
        run = "echo fails >> done"
        needs = ["bad"]
        if_needed_fails = "fail"
        [[job]]
        name = "runs"
        run = "echo runs >> done"
        needs = ["bad", "cancels"]
        if_needed_fails = "run"
        """
    )

    ended = bench.run()

    bad = "failed      bad: exit status 1; log: jobs.queue.db-logs/bad.log"
    assert ended.lines[1:3] == ["T started     bad", f"T {bad}"]
    assert sorted(ended.lines[3:6]) == [
        "T cancelled   cancels: because of bad",
        "T cancelled   default: because of bad",
        "T failed      fails: because of bad",
    ]
    assert ended.lines[6:] == [
        "T started     runs",
        "T completed   runs in N s",
        "1 completed, 2 failed, 2 cancelled of 5 jobs in N s",
        bad,
        "failed      fails: because of bad",
        "cancelled   default: because of bad",
        "cancelled   cancels: because of bad",
    ]
    assert ended.status == 1
    assert bench.read("done") == ["runs"]


def test_jobs_run_side_by_side(bench) -> None:
    """S3.2: as many jobs run at a time as `--jobs` says: these two wait for each other."""
    os.mkfifo(bench.folder / "meet")
    bench.write(
        '[[job]]\nname = "a"\nrun = "echo hello > meet"\n[[job]]\nname = "b"\nrun = "read x < meet; echo $x > met"\n'
    )

    ended = bench.start("run", "jobs.toml", "--jobs", "2").end()

    assert ended.status == 0
    assert bench.read("met") == ["hello"]


def test_a_reader_that_goes_away_loses_only_lines(bench) -> None:
    """A broken pipe on standard output stops no job and changes no status."""
    go = bench.fifo("go")
    bench.write(
        '[[job]]\nname = "a"\nrun = "read x < go; echo a >> done"\n'
        '[[job]]\nname = "b"\nrun = "echo b >> done"\nneeds = ["a"]\n'
    )

    running = bench.start("run", "jobs.toml")
    running.wait_for("T started     a")
    assert running.process.stdout is not None
    running.process.stdout.close()
    go.give()
    status = running.process.wait()

    assert running.process.stderr is not None
    assert (status, running.process.stderr.read()) == (0, "")
    assert bench.read("done") == ["a", "b"]


def test_names_that_the_terminal_cannot_show(bench) -> None:
    """Where standard output lacks a character, its escape is printed and nothing fails."""
    bench.environment["PYTHONIOENCODING"] = "ascii"
    bench.write('[[job]]\nname = "größe"\nrun = "true"\n')

    ended = bench.run()

    assert ended.lines[1] == "T started     gr\\xf6\\xdfe"
    assert ended.status == 0


def test_the_package_does_not_load_the_command() -> None:
    """`import durable_queue` loads nothing of the command, nor what only the command needs."""
    code = (
        "import sys, durable_queue; "
        "print([name for name in sys.modules if '_command' in name or name in ('argparse', 'tomllib', 'aiosqlite')])"
    )
    output = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(durable_queue.__file__).parents[1],
        capture_output=True,
        encoding="utf-8",
        check=True,
    )

    assert output.stdout == "[]\n"


def test_the_example_packs_the_documentation(bench) -> None:
    """The example of the documentation does what it says, on a copy of the documentation."""
    docs = Path(durable_queue.__file__).parents[1] / "docs"
    shutil.copytree(docs, bench.folder / "docs")

    ended = bench.start(
        "run", "docs/examples/pack_docs.toml", "--db", "run-demo/pack_docs.db", "--jobs", "2"
    ).end()

    assert (ended.status, ended.errors) == (0, "")
    (report,) = bench.read("run-demo/report.txt")
    count = len([path for path in docs.rglob("*") if path.is_file() and "__pycache__" not in path.parts])
    assert report.startswith(f"{count} files, ")
    assert len(bench.read("run-demo/checksums.txt")) == count
    assert not list((bench.folder / "run-demo").glob("*.unfinished"))
