"""Write the results of the comparison on real tasks, and check its bounds."""

from pathlib import Path

from benchmarks import task_figures
from benchmarks.experiment import short, write_markdown, write_table
from benchmarks.task_bounds import Results, bounds
from benchmarks.task_list import Partition
from benchmarks.timing import conclude, print_table

SHOWN = Partition.RANDOM, Partition.HETEROGENEOUS, Partition.SHARED


def report(
    results: Results, tasks: tuple[str, ...], methods: tuple[str, ...], directory: Path
) -> None:
    """Write the tables and figures, and check the bounds."""
    header, rows = task_figures.table(results, tasks, methods)
    print_table(header, [[short(cell) for cell in row] for row in rows])
    write_table(directory / "tasks.csv", header, rows)
    for partition in SHOWN:
        arguments = results, tasks, methods, partition
        write_markdown(
            directory / f"tasks-{partition}.md", *task_figures.summary(*arguments)
        )
        losses = task_figures.losses(*arguments)
        write_markdown(directory / f"tasks-loss-{partition}.md", *losses)
    for task in tasks:
        costs = task_figures.costs(results, task, methods)
        write_markdown(directory / f"tasks-costs-{task}.md", *costs)
    task_figures.draw(results, tasks, methods, directory)
    conclude(bounds(results, tasks))
